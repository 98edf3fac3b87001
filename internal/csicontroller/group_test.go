package csicontroller_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const askedGroup = "groupsnapshot-0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"

// another returns a claim's thin PersistentVolume with the given name.
func another(t *testing.T, name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	t.Helper()
	o := thin(made(name, volume.Name(name), pv.CSI, volume.IOLimits{}))
	for _, c := range change {
		c(o)
	}
	return o
}

func (d *desk) createGroup(sources ...string) (*csi.VolumeGroupSnapshot, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	r, err := d.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: askedGroup, SourceVolumeIds: sources})
	return r.GetGroupSnapshot(), err
}

func (d *desk) snapshots() []corev1.PersistentVolume {
	d.t.Helper()
	list, err := d.volumes().List(context.Background(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
	require.NoError(d.t, err)
	return list.Items
}

// nodeOfGroup calls do with each PersistentVolume of a snapshot group, once n of them exist.
func (d *desk) nodeOfGroup(n int, do func(o *corev1.PersistentVolume)) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for d.t.Context().Err() == nil {
			list, err := d.volumes().List(context.Background(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
			if err == nil && len(list.Items) == n {
				for i := range list.Items {
					do(&list.Items[i])
				}
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return done
}

func (d *desk) takesGroup(n int) chan struct{} {
	return d.nodeOfGroup(n, func(o *corev1.PersistentVolume) { d.write(o, persistentvolume.Taken(moment, 2*volume.GiB)) })
}

func TestGroup(t *testing.T) {
	a, b := another(t, "pvc-a"), another(t, "pvc-b", func(o *corev1.PersistentVolume) { linear(o) })
	d := newDesk(t, a, b)
	done := d.takesGroup(2)
	taken, err := d.createGroup("flexlvm/pvc-a", "flexlvm/pvc-b")
	require.NoError(t, err)
	<-done
	require.Equal(t, askedGroup, taken.GetGroupSnapshotId())
	require.True(t, taken.GetReadyToUse())
	require.Equal(t, moment, taken.GetCreationTime().AsTime())
	var sources, ids, names []string
	for _, s := range taken.GetSnapshots() {
		require.Equal(t, askedGroup, s.GetGroupSnapshotId())
		sources, ids = append(sources, s.GetSourceVolumeId()), append(ids, s.GetSnapshotId())
	}
	require.ElementsMatch(t, []string{"flexlvm/pvc-a", "flexlvm/pvc-b"}, sources)
	for _, o := range d.snapshots() {
		names = append(names, o.Name)
	}
	for _, o := range d.snapshots() {
		v, err := persistentvolume.Parse(&o)
		require.NoError(t, err)
		require.Equal(t, []string{askedGroup, strings.Join(names, ",")}, []string{v.SnapshotGroup, v.Members})
	}
	require.Len(t, d.clerk.reserved, 1, "room is reserved for all together")
	require.ElementsMatch(t, names, d.clerk.written)

	again, err := d.createGroup("flexlvm/pvc-b", "flexlvm/pvc-a")
	require.NoError(t, err)
	require.Equal(t, taken.String(), again.String(), "it is taken once")
	_, err = d.createGroup("flexlvm/pvc-a")
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	got, err := d.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: askedGroup, SnapshotIds: ids})
	require.NoError(t, err)
	require.Equal(t, taken.String(), got.GetGroupSnapshot().String())
	one, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{SnapshotId: ids[0]})
	require.NoError(t, err)
	require.Equal(t, askedGroup, one.GetEntries()[0].GetSnapshot().GetGroupSnapshotId())

	part := d.snapshots()[0]
	require.NoError(t, d.volumes().Delete(t.Context(), part.Name, metav1.DeleteOptions{}))
	_, err = d.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: askedGroup})
	require.Equal(t, codes.NotFound, status.Code(err), "half of it is no group")
	part.ResourceVersion = ""
	_, err = d.volumes().Create(t.Context(), &part, metav1.CreateOptions{})
	require.NoError(t, err)

	_, err = d.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: "other", SnapshotIds: ids})
	require.ErrorContains(t, err, `is not of the group "other"`)
	require.Len(t, d.snapshots(), 2)
	for range 2 {
		_, err = d.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: askedGroup, SnapshotIds: ids})
		require.NoError(t, err)
		require.Empty(t, d.snapshots())
	}
	_, err = d.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: askedGroup})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// Only the members of the one group are listed, and nothing is listed for an ID that no group can have.
func TestOnlyOneGroupIsListed(t *testing.T) {
	d := newDesk(t, another(t, "pvc-a"))
	for _, id := range []string{askedGroup, "a b", "x,y", strings.Repeat("x", 64)} {
		_, err := d.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id})
		require.NoError(t, err, id)
		_, err = d.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: id})
		require.Equal(t, codes.NotFound, status.Code(err), id)
	}
	var listed []string
	for _, a := range d.server.Actions() {
		if list, ok := a.(clienttesting.ListAction); ok {
			listed = append(listed, list.GetListRestrictions().Labels.String())
		}
	}
	require.Equal(t, []string{"flexlvm.io/snapshot-group=" + askedGroup, "flexlvm.io/snapshot-group=" + askedGroup}, listed)
}

// A group snapshot is taken whole or not at all: a call that fails leaves none of its members.
func TestGroupIsAllOrNothing(t *testing.T) {
	both := []string{"flexlvm/pvc-a", "flexlvm/pvc-b"}
	for name, tt := range map[string]struct {
		second func(*corev1.PersistentVolume)
		before func(*desk)
		code   codes.Code
		says   string
	}{
		"on another node":   {second: func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" }, code: codes.FailedPrecondition, says: "there is no one instant on two nodes"},
		"of another tenant": {second: func(o *corev1.PersistentVolume) { o.Spec.CSI.VolumeAttributes[pv.AttributeNamespace] = "thief" }, code: codes.FailedPrecondition, says: "a group is of one namespace"},
		"a device":          {second: func(o *corev1.PersistentVolume) { o.Spec.CSI.VolumeAttributes["volumeMode"] = "Block" }, code: codes.FailedPrecondition, says: "is a device without a file system"},
		"released":          {second: func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased }, code: codes.FailedPrecondition, says: "is Released"},
		"gone":              {second: func(o *corev1.PersistentVolume) { o.Spec.CSI.VolumeHandle = "flexlvm/other" }, code: codes.NotFound, says: "flexlvm/pvc-b"},
		"no room":           {before: func(d *desk) { d.clerk.full = "has no room for 2 snapshots together" }, code: codes.FailedPrecondition, says: "has no room for 2 snapshots together"},
		"the node cannot": {before: func(d *desk) {
			d.nodeOfGroup(2, func(o *corev1.PersistentVolume) { d.write(o, persistentvolume.NotTaken("LVM is slow")) })
		}, code: codes.FailedPrecondition, says: "the node could not take the snapshot: LVM is slow"},
		"the API server refuses the second": {before: func(d *desk) {
			n := 0
			d.server.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				if n++; n == 2 {
					return true, nil, status.Error(codes.Internal, "no")
				}
				return false, nil, nil
			})
		}, code: codes.Internal, says: "no"},
	} {
		t.Run(name, func(t *testing.T) {
			second := another(t, "pvc-b")
			if tt.second != nil {
				tt.second(second)
			}
			d := newDesk(t, another(t, "pvc-a"), second)
			if tt.before != nil {
				tt.before(d)
			}
			_, err := d.createGroup(both...)
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			require.ErrorContains(t, err, tt.says)
			require.Empty(t, d.snapshots())
		})
	}
}

func (c *clerk) GroupUUIDs(string) map[volume.PoolName]string {
	if c.reported != nil {
		return c.reported
	}
	return c.uuids
}

// After a node was replaced under the same name, the volumes of its former group are lost: no snapshot is taken of
// them, alone or in a group, and no room is reserved in the new group. A snapshot of a volume in the new group is taken.
func TestCreateSnapshotOfAVolumeOfAReplacedNode(t *testing.T) {
	const before, now = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", "Fe1tBc-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	of := func(group string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.CSI.VolumeAttributes[volume.OptionGroupUUID] = group }
	}
	d := newDesk(t, another(t, "pvc-1", of(before)), another(t, "pvc-2", of(now)))
	d.clerk.uuids = map[volume.PoolName]string{"flexlvm/thinpool": now}
	d.clerk.reported = map[volume.PoolName]string{"flexlvm/thinpool": before}
	_, meanwhile := d.create(asked, "flexlvm/pvc-1")
	require.Equal(t, codes.FailedPrecondition, status.Code(meanwhile), meanwhile)
	d.clerk.reported, d.clerk.reserved = nil, nil
	_, alone := d.create(asked, "flexlvm/pvc-1")
	_, grouped := d.createGroup("flexlvm/pvc-2", "flexlvm/pvc-1")
	for _, err := range []error{alone, grouped} {
		require.Equal(t, codes.FailedPrecondition, status.Code(err), err)
		require.ErrorContains(t, err, `the volume of PersistentVolume "pvc-1" is on node "node-1", and volume group flexlvm there is another one than it was made in; unless the former disks come back, it is lost`)
		require.Empty(t, d.snapshots(), "nothing was written")
	}
	require.Empty(t, d.clerk.reserved)
	taken := d.takes()
	_, err := d.create(asked, "flexlvm/pvc-2")
	require.NoError(t, err)
	<-taken
}

// If a process ends while it creates a group's members, the next process creates the rest. A group that
// has lost a member is aborted and its other members are deleted.
func TestGroupGoesOnWhereAnEarlierProcessHasEnded(t *testing.T) {
	d := newDesk(t, another(t, "pvc-a"), another(t, "pvc-b"))
	done := d.takesGroup(2)
	_, err := d.createGroup("flexlvm/pvc-a", "flexlvm/pvc-b")
	require.NoError(t, err)
	<-done
	untaken := d.snapshots()
	for _, o := range untaken {
		require.NoError(t, d.volumes().Delete(t.Context(), o.Name, metav1.DeleteOptions{}))
	}
	half := untaken[1]
	half.ResourceVersion = ""
	for key := range persistentvolume.Taken(moment, 1) {
		delete(half.Annotations, key)
	}
	_, err = d.volumes().Create(t.Context(), &half, metav1.CreateOptions{})
	require.NoError(t, err)
	done = d.takesGroup(2)
	_, err = d.createGroup("flexlvm/pvc-a", "flexlvm/pvc-b")
	require.NoError(t, err)
	<-done
	require.NoError(t, d.volumes().Delete(t.Context(), untaken[0].Name, metav1.DeleteOptions{}))
	_, err = d.createGroup("flexlvm/pvc-a", "flexlvm/pvc-b")
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.Empty(t, d.snapshots(), "none is left that would be of another instant than the rest")
}

func TestGroupRefusesNonsense(t *testing.T) {
	d := newDesk(t, another(t, "pvc-a"))
	many := make([]string, 17)
	for i := range many {
		many[i] = "flexlvm/" + strings.Repeat("x", i+1)
	}
	for says, r := range map[string]*csi.CreateVolumeGroupSnapshotRequest{
		"name: is missing":              {SourceVolumeIds: []string{"flexlvm/pvc-a"}},
		"source_volume_ids: is missing": {Name: "x"},
		"name a volume twice":           {Name: "x", SourceVolumeIds: []string{"flexlvm/pvc-a", "flexlvm/pvc-a"}},
		"more than 16 volumes":          {Name: "x", SourceVolumeIds: many},
		"are not accepted":              {Name: "x", SourceVolumeIds: []string{"flexlvm/pvc-a"}, Secrets: map[string]string{"a": "b"}},
		"VolumeGroupSnapshotClass":      {Name: "x", SourceVolumeIds: []string{"flexlvm/pvc-a"}, Parameters: map[string]string{"a": "b"}},
		"is not a percentage":           {Name: "x", SourceVolumeIds: []string{"flexlvm/pvc-a"}, Parameters: map[string]string{"reserve": "b"}},
	} {
		_, err := d.CreateVolumeGroupSnapshot(t.Context(), r)
		require.Equal(t, codes.InvalidArgument, status.Code(err), says)
		require.ErrorContains(t, err, says)
	}
	require.Empty(t, d.snapshots())
}
