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
	"github.com/flexlvm/flexlvm/internal/pause"
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
	Now  func() time.Time
}

// A Room reserves room for snapshots: *ledger.Ledger, in production.
type Room interface {
	NodeOf(label string) (name, report string, reported bool)
	GroupUUIDs(node string) map[volume.PoolName]string
	Reserve(node string, wants []ledger.Want, reads ...volume.Name) (map[volume.PoolName]string, error)
	Written(object *corev1.PersistentVolume)
}

// CreateSnapshot takes a snapshot: it reserves room for it, creates its PersistentVolume, and waits until the
// daemon of its node reports that it has taken it. A repeated call continues to wait. If the node cannot take
// the snapshot, or does not answer in time, the PersistentVolume is deleted and the call fails.
//
// CSI's snapshotter keeps a deleted VolumeSnapshot, and repeats the call, until the call succeeds or fails with a
// final code (isCSIFinalError, external-snapshotter 8.7.0). After a final code it makes no more calls for a
// deleted VolumeSnapshot, not even DeleteSnapshot. So CreateSnapshot returns a final code only if the snapshot's
// PersistentVolume does not exist or is marked as deleted. In the latter case the node removes the snapshot, even
// if it has taken it meanwhile, and the snapshot is never reported as taken.
func (s *Service) CreateSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switch {
	case s.snapshots == nil:
		return nil, notServed()
	case r.GetName() == "":
		return nil, missing(fieldName)
	case r.GetSourceVolumeId() == "":
		return nil, missing(fieldSource)
	}
	name := snapshotName(r.GetName())
	object, err := s.volumes.Get(ctx, string(name), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if object, err = s.makeSnapshot(ctx, r, name); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolume %q: %w", name, err)
	case !persistentvolume.IsSnapshot(object):
		return nil, status.Errorf(codes.AlreadyExists, "PersistentVolume %q exists and is not a snapshot's", name)
	case sourceOf(object) != r.GetSourceVolumeId():
		return nil, status.Errorf(codes.AlreadyExists, "snapshot %q exists and is of the volume %s", r.GetName(), sourceOf(object))
	}
	snapshot, err := s.awaitTaken(ctx, object)
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshot}, nil
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

// makeSnapshot reserves room for a snapshot and creates its PersistentVolume. The class is checked only here,
// because it may have changed after an earlier call created the PersistentVolume.
func (s *Service) makeSnapshot(ctx context.Context, r *csi.CreateSnapshotRequest, name volume.Name) (*corev1.PersistentVolume, error) {
	reserve, err := checkClass("VolumeSnapshotClass", r.GetParameters(), r.GetSecrets())
	if err != nil {
		return nil, err
	}
	d, err := s.draft(ctx, r.GetSourceVolumeId(), name, reserve)
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
	if err := checkSource(d.of, id); err != nil {
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

// reserve reserves room for all snapshots or for none, on the node of their sources. Its errors must be final (see
// CreateSnapshot), which ResourceExhausted and Unavailable are not. The groups are checked before, because each retry
// would renew a reservation, and again with those of the reservation.
func (s *Service) reserve(drafts []draft) error {
	of := drafts[0].of
	node, _, reported := s.snapshots.Room.NodeOf(of.Labels[pv.LabelNode])
	if !reported {
		return status.Errorf(codes.FailedPrecondition, "the node of PersistentVolume %q has not reported; check `kubectl get nodestorages` and the pod of DaemonSet flexlvm-gc there", of.Name)
	}
	if err := checkGroups(drafts, node, s.snapshots.Room.GroupUUIDs(node)); err != nil {
		return err
	}
	var wants []ledger.Want
	for _, d := range drafts {
		wants = append(wants, d.want)
	}
	uuids, err := s.snapshots.Room.Reserve(node, wants)
	if full := (*ledger.NoRoomError)(nil); errors.As(err, &full) {
		return status.Errorf(codes.FailedPrecondition, "a snapshot may come to hold all that its volume does, or as much as %s of its VolumeSnapshotClass says, and node %q %s", volume.OptionReserve, full.Node, full.Why)
	}
	if err != nil {
		return err
	}
	return checkGroups(drafts, node, uuids)
}

// checkGroups returns an error if the node has another volume group than the one that a source was created in, as after
// the node was replaced under the same name: the node takes no snapshot of a volume that is not in its group. uuids are
// the UUIDs of the pools' groups. A pool that is not among them is left to Reserve.
func checkGroups(drafts []draft, node string, uuids map[volume.PoolName]string) error {
	for _, d := range drafts {
		spec := d.want.Spec
		if uuid, reported := uuids[spec.Pool()]; reported && spec.GroupUUID != "" && spec.GroupUUID != uuid {
			return status.Errorf(codes.FailedPrecondition, "the volume of PersistentVolume %q is on node %q, and volume group %s there is another one than it was made in; unless the former disks come back, it is lost", d.of.Name, node, spec.Group)
		}
	}
	return nil
}

// create creates the PersistentVolume of a snapshot for which room is reserved.
func (s *Service) create(ctx context.Context, d draft) (*corev1.PersistentVolume, error) {
	made, err := s.volumes.Create(ctx, d.object, metav1.CreateOptions{})
	if err != nil {
		return nil, rejected(fmt.Errorf("write PersistentVolume %q: %w", d.object.Name, err))
	}
	s.snapshots.Room.Written(made)
	klog.FromContext(ctx).Info("A snapshot is to be taken", "volume", sourceOf(made), "persistentvolume", made.Name)
	return made, nil
}

// checkSource returns an error if a volume cannot be the source of a snapshot.
func checkSource(of *corev1.PersistentVolume, id string) error {
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

// awaitTaken waits until the node has taken a snapshot. live is the snapshot's PersistentVolume, just read from
// the API server or created.
func (s *Service) awaitTaken(ctx context.Context, live *corev1.PersistentVolume) (*csi.Snapshot, error) {
	for object := live; ; {
		_, taken := persistentvolume.TakenAt(object)
		failure := s.failure(object)
		switch {
		case object.DeletionTimestamp != nil:
			return nil, status.Errorf(codes.FailedPrecondition, "PersistentVolume %q of an earlier attempt at this snapshot is being deleted: check the pod of DaemonSet flexlvm-gc on its node; the snapshot is retried, and taken once that PersistentVolume is gone", object.Name)
		case taken:
			return describe(object)
		case failure != "":
			if err := s.withdraw(ctx, object); err != nil {
				return nil, err
			}
			return nil, status.Error(codes.FailedPrecondition, failure)
		}
		seen, err := s.pollCache(ctx, live, "its node has not taken the snapshot yet: check the pod of DaemonSet flexlvm-gc there")
		if err != nil {
			return nil, err
		}
		if seen != nil {
			object = seen
		}
	}
}

// failure returns why a snapshot that is not taken is to be given up: its node could not take it, no longer
// reports, or has not answered in time. It is empty otherwise.
func (s *Service) failure(object *corev1.PersistentVolume) string {
	if problem := object.Annotations[pv.AnnotationSnapshotProblem]; problem != "" {
		return "the node could not take the snapshot: " + problem
	}
	const look = "check `kubectl get nodestorages` and the pod of DaemonSet flexlvm-gc there; the snapshot is retried"
	node, _, reported := s.snapshots.Room.NodeOf(object.Labels[pv.LabelNode])
	switch {
	case !reported:
		return fmt.Sprintf("the node of PersistentVolume %q no longer reports; %s", object.Name, look)
	case s.unanswered.tooLong(object.UID, s.snapshots.Now()):
		return fmt.Sprintf("node %q has not taken the snapshot within %s; %s", node, answerLimit, look)
	}
	return ""
}

// pollCache waits for takenPoll and returns the PersistentVolume from the cache. It returns nil if the cache has
// none of that name, or a different one.
func (s *Service) pollCache(ctx context.Context, of *corev1.PersistentVolume, late string) (*corev1.PersistentVolume, error) {
	if pause.For(ctx, takenPoll) != nil {
		return nil, status.Errorf(codes.DeadlineExceeded, "PersistentVolume %q: %s", of.Name, late)
	}
	seen, err := s.snapshots.Seen(of.Name)
	if apierrors.IsNotFound(err) || err == nil && seen.UID != of.UID {
		return nil, nil
	}
	return seen, err
}

// withdraw deletes the PersistentVolumes of snapshots. If a snapshot was not taken yet, its PersistentVolume is
// deleted only at the observed resourceVersion, because the node may have taken the snapshot since.
func (s *Service) withdraw(ctx context.Context, objects ...*corev1.PersistentVolume) error {
	for _, o := range objects {
		if o.DeletionTimestamp != nil {
			continue
		}
		only := metav1.Preconditions{UID: &o.UID}
		if _, taken := persistentvolume.TakenAt(o); !taken {
			only.ResourceVersion = &o.ResourceVersion
		}
		if err := s.deleteObject(ctx, o.Name, only); err != nil {
			return err
		}
	}
	s.awaitRemoved(ctx, objects)
	return nil
}

// awaitRemoved waits until the node has removed the snapshots that it could not take, so that the next call
// starts from scratch. It does not wait for a node that has not answered, nor for snapshots that were already
// marked as deleted. All are marked by now, so it does not matter whether the wait succeeds.
func (s *Service) awaitRemoved(ctx context.Context, objects []*corev1.PersistentVolume) {
	for _, o := range objects {
		if o.DeletionTimestamp != nil || o.Annotations[pv.AnnotationSnapshotProblem] == "" {
			continue
		}
		for seen, err := o, error(nil); seen != nil && err == nil; {
			seen, err = s.pollCache(ctx, o, "its node has not removed the snapshot yet")
		}
	}
}

func (s *Service) deleteObject(ctx context.Context, name string, only metav1.Preconditions) error {
	err := s.volumes.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &only})
	switch {
	case apierrors.IsConflict(err):
		return status.Errorf(codes.Unavailable, "PersistentVolume %q has changed since it was read, and is read again before it is deleted", name)
	case err != nil && !apierrors.IsNotFound(err):
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
