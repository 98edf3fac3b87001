package csicontroller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Field names of the requests for snapshots, as they appear in messages.
const (
	fieldSource   = "source_volume_id"
	fieldName     = "name"
	fieldSnapshot = "snapshot_id"
)

// sidecarKeys is the prefix of the parameters in which CSI's snapshotter passes the objects that it acts for.
const sidecarKeys = "csi.storage.k8s.io/"

// takenPoll is the interval at which to check whether a node has taken a snapshot.
const takenPoll = 100 * time.Millisecond

// Snapshots holds what taking snapshots needs besides the API server.
type Snapshots struct {
	Room Room
	// Seen returns a PersistentVolume from a cache, because it is called often.
	Seen func(name string) (*corev1.PersistentVolume, error)
}

// A Room reserves room for snapshots: *ledger.Ledger, in production.
type Room interface {
	NodeOf(label string) (name, report string, reported bool)
	Reserve(node string, wants []ledger.Want, reads ...volume.Name) (map[volume.PoolName]string, error)
	Written(object *corev1.PersistentVolume)
}

// CreateSnapshot takes a snapshot: it reserves room for it, creates its PersistentVolume, and waits until the
// daemon of its node reports that it has taken it. A repeated call continues to wait. If the node cannot take
// the snapshot, the PersistentVolume is withdrawn before the call fails, so that a failure leaves nothing
// behind.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	reserve, err := s.checkCreate(r)
	if err != nil {
		return nil, err
	}
	name := snapshotName(r.GetName())
	object, err := s.volumes.Get(ctx, string(name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if object, err = s.makeSnapshot(ctx, r.GetSourceVolumeId(), name, reserve); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolume %q: %w", name, err)
	case !persistentvolume.IsSnapshot(object):
		return nil, status.Errorf(codes.AlreadyExists, "PersistentVolume %q is there and stands for no snapshot", name)
	case sourceOf(object) != r.GetSourceVolumeId():
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q is there and is of the volume %s", r.GetName(), sourceOf(object))
	}
	snapshot, err := s.awaitTaken(ctx, object)
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshot}, nil
}

// checkCreate checks a request and returns the reserve that its class sets for copy-on-write snapshots.
func (s *Service) checkCreate(r *csi.CreateSnapshotRequest) (volume.Reserve, error) {
	switch {
	case s.snapshots == nil:
		return 0, notServed()
	case r.GetName() == "":
		return 0, missing(fieldName)
	case r.GetSourceVolumeId() == "":
		return 0, missing(fieldSource)
	}
	return checkClass("VolumeSnapshotClass", r.GetParameters(), r.GetSecrets())
}

func notServed() error {
	return status.Error(codes.Unimplemented, "snapshots are not served on this socket; see --snapshot-socket")
}

// checkClass checks the parameters of a snapshot class and returns its reserve for copy-on-write snapshots.
func checkClass(kind string, parameters, secrets map[string]string) (reserve volume.Reserve, err error) {
	if len(secrets) > 0 {
		return 0, refuse(&volume.FieldError{Field: fieldSecrets, Reason: "are not accepted: a snapshot needs no key; leave them out of the " + kind})
	}
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		switch {
		case key == volume.OptionReserve:
			if reserve, err = volume.ParseReserve(key, parameters[key]); err != nil {
				return 0, refuse(err)
			}
		case !strings.HasPrefix(key, sidecarKeys):
			return 0, refuse(&volume.FieldError{Field: "parameters", Value: key, Reason: "is not known; the one parameter of a " + kind + " of flexlvm is " + volume.OptionReserve})
		}
	}
	return reserve, nil
}

// usualName matches the names that CSI's snapshotter gives to snapshots, from the UID of the VolumeSnapshot.
var usualName = regexp.MustCompile(`^snapshot-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// snapshotName returns the name of a snapshot's PersistentVolume and volume. LVM accepts no name that begins
// with "snapshot".
func snapshotName(asked string) volume.Name {
	if usualName.MatchString(asked) {
		return volume.Name("snap" + strings.TrimPrefix(asked, "snapshot"))
	}
	return volume.Name(fmt.Sprintf("snap-%x", sha256.Sum256([]byte(asked)))[:63])
}

// A draft is the PersistentVolume of a snapshot that has not been created yet.
type draft struct {
	of, object *corev1.PersistentVolume
	want       ledger.Want
}

// makeSnapshot creates the PersistentVolume of a snapshot once there is room for it.
func (s *Service) makeSnapshot(ctx context.Context, id string, name volume.Name, reserve volume.Reserve) (*corev1.PersistentVolume, error) {
	d, err := s.draft(ctx, id, name, reserve)
	if err != nil {
		return nil, err
	}
	if err := s.reserve([]draft{d}); err != nil {
		return nil, err
	}
	return s.create(ctx, d)
}

// draft returns the PersistentVolume to be created for a snapshot of a volume.
func (s *Service) draft(ctx context.Context, id string, name volume.Name, reserve volume.Reserve) (d draft, err error) {
	if d.of, err = s.find(ctx, id, ""); err != nil {
		return d, err
	}
	if err := mayTake(d.of, id); err != nil {
		return d, err
	}
	if _, thin := persistentvolume.Options(d.of)[volume.OptionThinPool]; thin {
		reserve = 0 // a thin snapshot takes its space from the pool
	}
	object, spec, err := persistentvolume.Snapshot(d.of, name, reserve)
	if err != nil {
		return d, status.Error(codes.FailedPrecondition, err.Error())
	}
	parsed, err := persistentvolume.Parse(object)
	if err != nil {
		return d, status.Error(codes.FailedPrecondition, err.Error())
	}
	d.object, d.want = object, ledger.Want{PV: object.Name, Claim: pv.SnapshotClaim, Spec: spec, Charged: parsed.Charged}
	return d, nil
}

// reserve reserves room on their node for all snapshots or for none. Its errors have to be final to CSI's
// snapshotter. ResourceExhausted and Unavailable are not: the snapshotter would treat the snapshot as started,
// and would keep a deleted VolumeSnapshot until the snapshot could be taken (isCSIFinalError,
// external-snapshotter 8.7.0).
func (s *Service) reserve(drafts []draft) error {
	of := drafts[0].of
	node, _, reported := s.snapshots.Room.NodeOf(of.Labels[pv.LabelNode])
	if !reported {
		return status.Errorf(codes.FailedPrecondition, "the node of PersistentVolume %q has not reported; look at `kubectl get nodestorages` and at the pod of DaemonSet flexlvm-gc there", of.Name)
	}
	var wants []ledger.Want
	for _, d := range drafts {
		wants = append(wants, d.want)
	}
	_, err := s.snapshots.Room.Reserve(node, wants)
	if full := (*ledger.NoRoom)(nil); errors.As(err, &full) {
		return status.Errorf(codes.FailedPrecondition, "a snapshot may come to hold all that its volume does, or as much as %s of its VolumeSnapshotClass says, and node %q %s", volume.OptionReserve, full.Node, full.Why)
	}
	return err
}

// create creates the PersistentVolume of a snapshot for which room is reserved.
func (s *Service) create(ctx context.Context, d draft) (*corev1.PersistentVolume, error) {
	made, err := s.volumes.Create(ctx, d.object, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write PersistentVolume %q: %w", d.object.Name, err)
	}
	s.snapshots.Room.Written(made)
	klog.FromContext(ctx).Info("A snapshot is to be taken", "volume", sourceOf(made), "persistentvolume", made.Name)
	return made, nil
}

// mayTake returns an error if no snapshot can be taken of a volume.
func mayTake(of *corev1.PersistentVolume, id string) error {
	c, err := persistentvolume.Parse(of)
	switch {
	case err != nil:
		return status.Error(codes.FailedPrecondition, err.Error())
	case c.Kind != volume.Claim:
		return status.Errorf(codes.FailedPrecondition, "the volume %s is of kind %q, and snapshots are only taken of claims' volumes", id, c.Kind)
	case c.Deleting || !c.Usable():
		return status.Errorf(codes.FailedPrecondition, "PersistentVolume %q is %s, or being deleted; take a snapshot of a claim that is Bound", of.Name, c.Phase)
	}
	return nil
}

// awaitTaken waits until the node has taken a snapshot.
func (s *Service) awaitTaken(ctx context.Context, made *corev1.PersistentVolume) (*csi.Snapshot, error) {
	for object := made; ; {
		_, taken := persistentvolume.TakenAt(object)
		problem := object.Annotations[pv.AnnotationSnapshotProblem]
		switch {
		case object.DeletionTimestamp != nil:
			return nil, status.Errorf(codes.Aborted, "the snapshot of this name is being deleted; it is tried again")
		case taken:
			return describe(object)
		case problem != "":
			if err := s.withdraw(ctx, object); err != nil {
				return nil, err
			}
			return nil, status.Errorf(codes.FailedPrecondition, "the node could not take the snapshot: %s", problem)
		}
		seen, err := s.look(ctx, made, "its node has not taken the snapshot yet: look at the pod of DaemonSet flexlvm-gc there")
		if err != nil {
			return nil, err
		}
		if seen != nil {
			object = seen
		}
	}
}

// look waits for takenPoll and returns the PersistentVolume from the cache; nil if it is gone or is another one
// of that name.
func (s *Service) look(ctx context.Context, of *corev1.PersistentVolume, late string) (*corev1.PersistentVolume, error) {
	poll := time.NewTimer(takenPoll)
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "PersistentVolume %q: %s", of.Name, late)
	case <-poll.C:
	}
	seen, err := s.snapshots.Seen(of.Name)
	if apierrors.IsNotFound(err) || err == nil && seen.UID != of.UID {
		return nil, nil
	}
	return seen, err
}

// withdraw deletes the PersistentVolume of a snapshot that was not taken, and waits until the node has
// withdrawn the snapshot. It is deleted only at the observed resourceVersion, because the node retries and may
// have taken the snapshot since.
func (s *Service) withdraw(ctx context.Context, object *corev1.PersistentVolume) error {
	err := s.deleteObject(ctx, object.Name, metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion})
	if apierrors.IsConflict(err) {
		return status.Errorf(codes.Unavailable, "PersistentVolume %q has changed since its node could not take the snapshot, and is looked at again", object.Name)
	}
	if err != nil {
		return err
	}
	for {
		seen, err := s.look(ctx, object, "its node has not withdrawn the snapshot yet, which it could not take")
		if err != nil || seen == nil {
			return err
		}
	}
}

func (s *Service) deleteObject(ctx context.Context, name string, only metav1.Preconditions) error {
	err := s.volumes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &only})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PersistentVolume %q: %w", name, err)
	}
	return nil
}

// DeleteSnapshot deletes a snapshot. It succeeds once the PersistentVolume is marked as deleted: its node
// removes the volume, also if the node is away now and comes back later.
func (s *Service) DeleteSnapshot(ctx context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	switch {
	case s.snapshots == nil:
		return nil, notServed()
	case r.GetSnapshotId() == "":
		return nil, missing(fieldSnapshot)
	}
	object, err := s.findSnapshot(ctx, r.GetSnapshotId())
	if err != nil || object == nil {
		return &csi.DeleteSnapshotResponse{}, err
	}
	if err := s.deleteObject(ctx, object.Name, metav1.Preconditions{UID: &object.UID}); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).Info("A snapshot is given up", "snapshot", r.GetSnapshotId())
	return &csi.DeleteSnapshotResponse{}, nil
}
