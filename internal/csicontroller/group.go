package csicontroller

import (
	"context"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Field names of the requests for groups, as they appear in messages.
const (
	fieldSources = "source_volume_ids"
	fieldGroup   = "group_snapshot_id"
)

// maxInGroup limits a group, because its volumes stay frozen until the last one is snapshotted.
const maxInGroup = 16

// GroupControllerGetCapabilities returns the calls for groups if snapshots are served.
func (s *Service) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	out := &csi.GroupControllerGetCapabilitiesResponse{}
	if s.snapshots != nil {
		out.Capabilities = append(out.Capabilities, &csi.GroupControllerServiceCapability{Type: &csi.GroupControllerServiceCapability_Rpc{
			Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
		}})
	}
	return out, nil
}

// CreateVolumeGroupSnapshot takes snapshots of several volumes at one instant: it reserves room for all of
// them, creates a PersistentVolume for each, and waits until the daemon of their node reports that it has taken
// them. A repeated call continues to wait. As with CreateSnapshot, an error is final only if the group has no
// PersistentVolumes, or all of them are marked as deleted.
func (s *Service) CreateVolumeGroupSnapshot(ctx context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	switch {
	case s.snapshots == nil:
		return nil, notServed()
	case r.GetName() == "":
		return nil, missing(fieldName)
	case len(r.GetSourceVolumeIds()) == 0:
		return nil, missing(fieldSources)
	}
	g := groupOf(r.GetName(), r.GetSourceVolumeIds())
	objects, err := s.members(ctx, g.id)
	if err != nil {
		return nil, err
	}
	if len(objects) > 0 && objects[0].Annotations[pv.AnnotationSnapshotMembers] != g.members() {
		return nil, status.Errorf(codes.AlreadyExists, "the group of snapshots %q exists and is of other volumes", r.GetName())
	}
	if len(objects) < len(g.names) && !slices.ContainsFunc(objects, s.ended) {
		if objects, err = s.makeGroup(ctx, g, objects, r); err != nil {
			return nil, err
		}
	}
	out, err := s.awaitGroup(ctx, g, objects)
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: out}, nil
}

// checkNewGroup checks a request for a group that does not completely exist yet, and returns the reserve that the
// group's class sets for copy-on-write snapshots.
func checkNewGroup(r *csi.CreateVolumeGroupSnapshotRequest) (volume.Reserve, error) {
	sources := r.GetSourceVolumeIds()
	switch {
	case len(sources) > maxInGroup:
		return 0, refuse(&volume.FieldError{Field: fieldSources, Value: fmt.Sprint(len(sources)), Reason: fmt.Sprintf("are more than %d volumes, which may be snapshotted at one instant; let the selector match fewer claims", maxInGroup)})
	case len(slices.Compact(slices.Sorted(slices.Values(sources)))) < len(sources):
		return 0, refuse(&volume.FieldError{Field: fieldSources, Value: strings.Join(sources, ","), Reason: "name a volume twice"})
	}
	return checkClass("VolumeGroupSnapshotClass", r.GetParameters(), r.GetSecrets())
}

// A group is a set of snapshots that are taken together.
type group struct {
	id      string
	names   []volume.Name // of the snapshots, sorted
	sources map[volume.Name]string
}

// usualGroup matches the names that CSI's snapshotter gives to groups, from the UID of the VolumeGroupSnapshot.
var usualGroup = regexp.MustCompile(`^groupsnapshot-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// groupOf returns the group with this name and with snapshots of the volumes with these handles.
func groupOf(asked string, sources []string) group {
	g := group{id: asked, sources: map[volume.Name]string{}}
	if !usualGroup.MatchString(asked) {
		g.id = fmt.Sprintf("group-%x", sha256.Sum256([]byte(asked)))[:63] // the maximum length of a label value
	}
	for _, source := range sources {
		name := snapshotName(g.id + " " + source)
		g.names = append(g.names, name)
		g.sources[name] = source
	}
	slices.Sort(g.names)
	return g
}

// members returns the value of the annotation that lists the snapshots of the group on its PersistentVolumes.
func (g group) members() string {
	var names []string
	for _, n := range g.names {
		names = append(names, string(n))
	}
	return strings.Join(names, ",")
}

// members returns the PersistentVolumes of a group, sorted by name. There are none for an ID that is not a
// valid label value.
func (s *Service) members(ctx context.Context, id string) ([]*corev1.PersistentVolume, error) {
	if len(validation.IsValidLabelValue(id)) > 0 {
		return nil, nil
	}
	list, err := s.volumes.List(ctx, metav1.ListOptions{LabelSelector: pv.LabelSnapshotGroup + "=" + id})
	if err != nil {
		return nil, fmt.Errorf("list the PersistentVolumes of the group of snapshots %q: %w", id, err)
	}
	var out []*corev1.PersistentVolume
	for i := range list.Items {
		if o := &list.Items[i]; persistentvolume.IsSnapshot(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// makeGroup creates the missing PersistentVolumes of a group once there is room for all.
func (s *Service) makeGroup(ctx context.Context, g group, there []*corev1.PersistentVolume, r *csi.CreateVolumeGroupSnapshotRequest) ([]*corev1.PersistentVolume, error) {
	reserve, err := checkNewGroup(r)
	if err != nil {
		return nil, s.rollback(ctx, there, err)
	}
	var drafts []draft
	var objects []*corev1.PersistentVolume
	for _, name := range g.names {
		d, err := s.draft(ctx, g.sources[name], name, reserve)
		if err == nil {
			drafts, objects = append(drafts, d), append(objects, d.object)
			err = checkGroupable(drafts[0], d)
		}
		if err != nil {
			return nil, s.rollback(ctx, there, err)
		}
	}
	persistentvolume.Grouped(g.id, objects)
	if err := s.reserve(drafts); err != nil {
		return nil, s.rollback(ctx, there, err)
	}
	for i, d := range drafts {
		if at := slices.IndexFunc(there, func(o *corev1.PersistentVolume) bool { return o.Name == d.object.Name }); at >= 0 {
			objects[i] = there[at]
			continue
		}
		made, err := s.create(ctx, d)
		if err != nil {
			return nil, s.rollback(ctx, there, err)
		}
		there = append(there, made)
		objects[i] = made
	}
	return objects, nil
}

// checkGroupable returns an error if a snapshot cannot be taken together with the first one of its group.
func checkGroupable(first, d draft) error {
	switch {
	case d.want.Spec.FSType == volume.Raw:
		return status.Errorf(codes.FailedPrecondition, "PersistentVolume %q is a device without a file system, and flexlvm cannot freeze writes to it; leave its claim out of the group, and snapshot it by itself", d.of.Name)
	case d.of.Labels[pv.LabelNode] != first.of.Labels[pv.LabelNode]:
		return status.Errorf(codes.FailedPrecondition, "PersistentVolume %q is on node %q and PersistentVolume %q on node %q; there is no one instant on two nodes, so let the selector match claims of one", first.of.Name, first.of.Labels[pv.LabelNode], d.of.Name, d.of.Labels[pv.LabelNode])
	case d.want.Spec.Namespace != first.want.Spec.Namespace:
		return status.Errorf(codes.FailedPrecondition, "PersistentVolume %q belongs to namespace %q and PersistentVolume %q to %q; a group is of one namespace", first.of.Name, first.want.Spec.Namespace, d.of.Name, d.want.Spec.Namespace)
	}
	return nil
}

// rollback deletes the PersistentVolumes of a group and returns why. Unless all of them are marked as deleted, it
// returns an error that is not final instead.
func (s *Service) rollback(ctx context.Context, objects []*corev1.PersistentVolume, why error) error {
	if err := s.withdraw(ctx, objects...); err != nil {
		return status.Errorf(codes.Unavailable, "the snapshots of the group are not deleted yet (%s); they are being deleted because: %s", status.Convert(err).Message(), status.Convert(why).Message())
	}
	return why
}

// ended reports whether a snapshot can no longer be taken together with its group.
func (s *Service) ended(o *corev1.PersistentVolume) bool {
	_, taken := persistentvolume.TakenAt(o)
	return taken || o.DeletionTimestamp != nil || s.failure(o) != ""
}

// awaitGroup waits until the node has taken all snapshots of a group.
func (s *Service) awaitGroup(ctx context.Context, g group, objects []*corev1.PersistentVolume) (*csi.VolumeGroupSnapshot, error) {
	for {
		out, err := s.outcome(ctx, g, objects)
		if err != nil || out != nil {
			return out, err
		}
		for i, o := range objects {
			seen, err := s.pollCache(ctx, o, "its node has not taken the group of snapshots yet: check the pod of DaemonSet flexlvm-gc there")
			if err != nil {
				return nil, err
			}
			if seen != nil {
				objects[i] = seen
			}
		}
	}
}

// outcome returns a group whose snapshots are all taken, or the error of a group that has failed. Until one of
// these is the case, it returns neither.
func (s *Service) outcome(ctx context.Context, g group, objects []*corev1.PersistentVolume) (*csi.VolumeGroupSnapshot, error) {
	untaken := 0
	for _, o := range objects {
		_, taken := persistentvolume.TakenAt(o)
		if o.DeletionTimestamp != nil {
			return nil, s.rollback(ctx, objects, status.Errorf(codes.FailedPrecondition, "PersistentVolume %q of this group is being deleted, so all are: check the pod of DaemonSet flexlvm-gc on its node; the group is retried, and taken once they are gone", o.Name))
		}
		if taken {
			continue
		}
		untaken++
		if failure := s.failure(o); failure != "" {
			return nil, s.rollback(ctx, objects, status.Error(codes.FailedPrecondition, failure))
		}
	}
	switch {
	case len(objects) < len(g.names):
		return nil, s.rollback(ctx, objects, status.Error(codes.FailedPrecondition, "a snapshot of this group is gone, so all are deleted; the group is retried"))
	case untaken > 0:
		return nil, nil
	}
	return describeGroup(g.id, objects)
}

// describeGroup returns a group that is taken. All its snapshots have the same creation time.
func describeGroup(id string, objects []*corev1.PersistentVolume) (*csi.VolumeGroupSnapshot, error) {
	out := &csi.VolumeGroupSnapshot{GroupSnapshotId: id, ReadyToUse: true}
	for _, o := range objects {
		one, err := describe(o)
		if err != nil {
			return nil, err
		}
		out.Snapshots, out.CreationTime = append(out.Snapshots, one), one.GetCreationTime()
		out.ReadyToUse = out.ReadyToUse && one.GetReadyToUse()
	}
	return out, nil
}

// GetVolumeGroupSnapshot returns a group if all its snapshots exist and are taken.
func (s *Service) GetVolumeGroupSnapshot(ctx context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	objects, err := s.groupNow(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	var names []string
	untaken := false
	for _, o := range objects {
		_, taken := persistentvolume.TakenAt(o)
		names, untaken = append(names, o.Name), untaken || !taken || o.DeletionTimestamp != nil
	}
	if len(objects) == 0 || untaken || strings.Join(names, ",") != objects[0].Annotations[pv.AnnotationSnapshotMembers] {
		return nil, status.Errorf(codes.NotFound, "there is no group of snapshots %q that is taken", r.GetGroupSnapshotId())
	}
	out, err := describeGroup(r.GetGroupSnapshotId(), objects)
	if err != nil {
		return nil, err
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: out}, nil
}

// DeleteVolumeGroupSnapshot deletes all snapshots of a group, as DeleteSnapshot deletes one.
func (s *Service) DeleteVolumeGroupSnapshot(ctx context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	objects, err := s.groupNow(ctx, r.GetGroupSnapshotId(), r.GetSnapshotIds())
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if err := s.deleteObject(ctx, o.Name, metav1.Preconditions{UID: &o.UID}); err != nil {
			return nil, err
		}
	}
	klog.FromContext(ctx).Info("A group of snapshots is given up", "group", r.GetGroupSnapshotId(), "snapshots", len(objects))
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// groupNow returns the existing PersistentVolumes of a group. It refuses snapshots that belong to another
// group.
func (s *Service) groupNow(ctx context.Context, id string, snapshots []string) ([]*corev1.PersistentVolume, error) {
	switch {
	case s.snapshots == nil:
		return nil, notServed()
	case id == "":
		return nil, missing(fieldGroup)
	}
	for _, one := range snapshots {
		o, err := s.findSnapshot(ctx, one)
		if err != nil {
			return nil, err
		}
		if o != nil && o.Labels[pv.LabelSnapshotGroup] != id {
			return nil, refuse(&volume.FieldError{Field: "snapshot_ids", Value: one, Reason: fmt.Sprintf("is not of the group %q", id)})
		}
	}
	return s.members(ctx, id)
}
