package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// nodePoll is how often takeSnapshots, the replacement of the daemon, lists PersistentVolumes.
const nodePoll = 50 * time.Millisecond

// room is a ledger that knows a single node with unlimited space.
type room struct{}

func (room) NodeOf(label string) (name, report string, reported bool) { return label, "", true }

func (room) Reserve(string, []ledger.Want, ...volume.Name) (map[volume.PoolName]string, error) {
	return nil, nil
}

func (room) GroupUUIDs(string) map[volume.PoolName]string { return nil }

func (room) Written(*corev1.PersistentVolume) {}

// specOf returns the volume spec that a node derives from a PersistentVolume.
func specOf(object *corev1.PersistentVolume) (volume.Spec, error) {
	spec, err := volume.ParseOptions(persistentvolume.Options(object))
	spec.Name, spec.Namespace = volume.Name(object.Name), namespace
	return spec, err
}

// takeSnapshots takes the snapshots that PersistentVolumes request, as the daemon does.
func (c *controller) takeSnapshots(ctx context.Context) {
	volumes := c.server.CoreV1().PersistentVolumes()
	for ; ctx.Err() == nil; time.Sleep(nodePoll) {
		list, err := volumes.List(ctx, metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
		if err != nil {
			continue
		}
		for i := range list.Items {
			object := &list.Items[i]
			if _, taken := persistentvolume.TakenAt(object); taken || object.Annotations[pv.AnnotationSnapshotProblem] != "" {
				continue
			}
			for key, value := range c.take(ctx, object) {
				if value != nil {
					object.Annotations[key] = *value
				}
			}
			if _, err := volumes.Update(ctx, object, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
				fmt.Fprintln(os.Stderr, "csicontroller:", err)
			}
		}
	}
}

func (c *controller) take(ctx context.Context, object *corev1.PersistentVolume) map[string]*string {
	spec, err := specOf(object)
	if err != nil {
		return persistentvolume.NotTaken(err.Error())
	}
	made, err := c.engine.MakeSnapshot(ctx, node.SnapshotRequest{Spec: spec}, func(context.Context) error { return nil })
	if err != nil {
		return persistentvolume.NotTaken(err.Error())
	}
	return persistentvolume.Taken(made.Created, made.Size)
}

// CreateSnapshot first has the volume created: CSI's tests do not mount it before.
func (c *controller) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if _, n, _, err := pv.ParseHandle("source_volume_id", r.GetSourceVolumeId()); err == nil {
		object, err := c.server.CoreV1().PersistentVolumes().Get(ctx, string(n), metav1.GetOptions{})
		if err == nil {
			if err := c.use(ctx, object); err != nil {
				return nil, err
			}
		}
	}
	return c.Service.CreateSnapshot(ctx, r)
}

// use mounts a volume, as a pod does.
func (c *controller) use(ctx context.Context, object *corev1.PersistentVolume) error {
	spec, err := specOf(object)
	if err != nil {
		return err
	}
	target := filepath.Join(os.TempDir(), string(spec.Name))
	if spec.FSType == volume.Raw {
		err = os.WriteFile(target, nil, 0o600)
	} else {
		err = os.MkdirAll(target, 0o700)
	}
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(target) }()
	if err := c.engine.Mount(ctx, spec, node.MountRequest{Target: target}); err != nil {
		return err
	}
	return c.engine.Unmount(ctx, target)
}

// DeleteSnapshot also removes the volume, which the daemon would do later.
func (c *controller) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	out, err := c.Service.DeleteSnapshot(ctx, r)
	if err != nil {
		return nil, err
	}
	g, n, _, err := pv.ParseHandle("snapshot_id", r.GetSnapshotId())
	if err != nil {
		return out, nil //nolint:nilerr // it names none
	}
	ref := node.Ref{Group: g, Name: n, Cluster: cluster, Kind: volume.Snapshot}
	if err := c.engine.Release(ctx, ref, volume.Unreferenced, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeNone}); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return out, c.removeUnreferenced(ctx)
}

// removeUnreferenced removes the unreferenced volumes that no snapshot depends on.
func (c *controller) removeUnreferenced(ctx context.Context) error {
	all, err := c.engine.List(ctx)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	kept := false
	for _, v := range all {
		if v.State != volume.Unreferenced || v.HasSnapshots {
			kept = kept || v.HasSnapshots
			continue
		}
		if err := c.engine.Remove(ctx, node.Ref{Group: v.Group, Name: v.Name, Cluster: v.Cluster, Kind: v.Kind, UUID: v.UUID}); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if kept { // it may have been the last snapshot of a volume earlier in the list
			return c.removeUnreferenced(ctx)
		}
	}
	return nil
}

// restore creates a volume as a copy of a snapshot, as the daemon does before the first mount.
func (c *controller) restore(ctx context.Context, id string, spec *volume.Spec) error {
	_, n, _, err := pv.ParseHandle("snapshot_id", id)
	if err != nil {
		return status.Error(codes.NotFound, err.Error())
	}
	object, err := c.server.CoreV1().PersistentVolumes().Get(ctx, string(n), metav1.GetOptions{})
	if err != nil || !persistentvolume.IsSnapshot(object) {
		return status.Errorf(codes.NotFound, "there is no snapshot %s", id)
	}
	spec.CloneOf = n
	return c.engine.CreateCloneAhead(ctx, *spec)
}
