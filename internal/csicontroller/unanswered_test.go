package csicontroller_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Deadlines of calls: brief where the node does not answer, and long where the call must return before its deadline.
const (
	brief = 300 * time.Millisecond
	long  = time.Minute
)

// within makes a call with a deadline, and records whether the call lasted until then.
func (d *desk) within(deadline time.Duration, call func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(d.t.Context(), deadline)
	defer cancel()
	call(ctx)
	d.waited = ctx.Err() != nil
}

func (d *desk) createWithin(deadline time.Duration, parameters map[string]string) (snapshot *csi.Snapshot, err error) {
	d.within(deadline, func(ctx context.Context) {
		var r *csi.CreateSnapshotResponse
		r, err = d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1", Parameters: parameters})
		snapshot = r.GetSnapshot()
	})
	return snapshot, err
}

func (d *desk) createGroupWithin(deadline time.Duration, parameters map[string]string) (err error) {
	d.within(deadline, func(ctx context.Context) {
		_, err = d.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: askedGroup, SourceVolumeIds: []string{"flexlvm/pvc-a", "flexlvm/pvc-b"}, Parameters: parameters})
	})
	return err
}

// finalizers makes a deletion only set the deletion timestamp, as the API server does for objects with finalizers,
// and checks its preconditions.
func (d *desk) finalizers() {
	d.server.PrependReactor("delete", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		found, err := d.server.Tracker().Get(a.GetResource(), "", a.(clienttesting.DeleteAction).GetName())
		if err != nil {
			return true, nil, err
		}
		object := found.(*corev1.PersistentVolume).DeepCopy()
		only := a.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
		if only == nil || only.UID == nil || only.ResourceVersion != nil && *only.ResourceVersion != object.ResourceVersion {
			return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), object.Name, errors.New("it has changed"))
		}
		if _, taken := persistentvolume.TakenAt(object); !taken && only.ResourceVersion == nil {
			return true, nil, errors.New("its node may have taken the snapshot since it was read")
		}
		object.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		return true, nil, d.server.Tracker().Update(a.GetResource(), object, "")
	})
}

// change applies do to all PersistentVolumes of snapshots.
func (d *desk) change(do func(*corev1.PersistentVolume)) {
	d.t.Helper()
	for _, o := range d.snapshots() {
		do(&o)
		d.write(&o, nil)
	}
}

// age sets the desk's clock ahead by this time. The creation timestamps come from another clock, so they must not
// matter.
func (d *desk) age(by time.Duration) {
	d.later = by
	d.change(func(o *corev1.PersistentVolume) {
		o.CreationTimestamp = metav1.Time{Time: time.Now().Add(-24 * time.Hour)}
	})
}

// removed deletes the PersistentVolumes, as the node does once it has removed their snapshots.
func (d *desk) removed() {
	for _, o := range d.snapshots() {
		require.NotNil(d.t, o.DeletionTimestamp)
		require.NoError(d.t, d.server.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", o.Name))
	}
}

// CSI's snapshotter keeps a deleted VolumeSnapshot until the call fails with a final code.
func TestASnapshotThatItsNodeDoesNotAnswerIsGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		away func(*desk)
		says string
	}{
		"for minutes":        {func(d *desk) { d.age(4 * time.Minute) }, `node "node-1" has not taken the snapshot within 3m0s`},
		"without its report": {func(d *desk) { d.clerk.silent = true }, "no longer reports"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
			d.finalizers()
			_, err := d.createWithin(brief, nil)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
			d.age(2 * time.Minute)
			_, err = d.createWithin(brief, nil)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "it may still be taken: %v", err)
			require.Nil(t, d.snapshots()[0].DeletionTimestamp)

			tt.away(d)
			_, err = d.createWithin(long, nil)
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.ErrorContains(t, err, tt.says)
			require.False(t, d.waited)
			require.NotNil(t, d.snapshots()[0].DeletionTimestamp, "the node removes what it takes meanwhile")

			// The node is back, and has taken the snapshot before it saw the deletion.
			d.clerk.silent = false
			d.change(func(o *corev1.PersistentVolume) {
				for key, value := range persistentvolume.Taken(moment, volume.GiB) {
					if value != nil {
						o.Annotations[key] = *value
					}
				}
			})
			_, err = d.createWithin(long, nil)
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.False(t, d.waited, "CSI's snapshotter has few workers")
			require.ErrorContains(t, err, "is being deleted")
			listed, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
			require.NoError(t, err)
			require.Empty(t, listed.GetEntries(), "it is none")

			d.removed()
			taken := d.takes()
			got, err := d.create(asked, "flexlvm/pvc-1")
			require.NoError(t, err)
			<-taken
			require.True(t, got.GetReadyToUse())
		})
	}
}

// A snapshot that is taken between the call's read and its deletion stays, and the next call returns it.
func TestASnapshotThatIsAnsweredLateIsNotDeleted(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	_, err := d.createWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	d.age(time.Hour)
	d.finalizers()
	d.server.PrependReactor("delete", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		found, err := d.server.Tracker().Get(a.GetResource(), "", a.(clienttesting.DeleteAction).GetName())
		require.NoError(t, err)
		object := found.(*corev1.PersistentVolume).DeepCopy()
		object.ResourceVersion = "2"
		for key, value := range persistentvolume.Taken(moment, volume.GiB) {
			if value != nil {
				object.Annotations[key] = *value
			}
		}
		return false, nil, d.server.Tracker().Update(a.GetResource(), object, "")
	})
	_, err = d.createWithin(long, nil)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	got, err := d.createWithin(long, nil)
	require.NoError(t, err)
	require.Equal(t, moment, got.GetCreationTime().AsTime())
}

// A snapshot that the node could not take fails with a final code even if the node does not remove it in time.
func TestAProblemIsFinalOnceTheDeletionIsOnRecord(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	d.finalizers()
	done := d.node(func(o *corev1.PersistentVolume) { d.write(o, persistentvolume.NotTaken("LVM is slow")) })
	_, err := d.createWithin(3*time.Second, nil)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "the node could not take the snapshot: LVM is slow")
	<-done
	require.NotNil(t, d.snapshots()[0].DeletionTimestamp)
}

func TestAGroupThatItsNodeDoesNotAnswerIsGivenUp(t *testing.T) {
	for name, tt := range map[string]struct {
		away func(*desk)
		says string
	}{
		"for minutes":        {func(d *desk) { d.age(4 * time.Minute) }, `node "node-1" has not taken the snapshot within 3m0s`},
		"without its report": {func(d *desk) { d.clerk.silent = true }, "no longer reports"},
		"after it could not": {func(d *desk) {
			d.change(func(o *corev1.PersistentVolume) { o.Annotations[pv.AnnotationSnapshotProblem] = "LVM is slow" })
		}, "the node could not take the snapshot: LVM is slow"},
		"one is deleted": {func(d *desk) {
			one := d.snapshots()[1]
			one.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			d.write(&one, nil)
		}, "is being deleted, so all are"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, another(t, "pvc-a"), another(t, "pvc-b"))
			d.finalizers()
			err := d.createGroupWithin(brief, nil)
			require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
			tt.away(d)
			err = d.createGroupWithin(brief, nil)
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.ErrorContains(t, err, tt.says)
			for _, o := range d.snapshots() {
				require.NotNil(t, o.DeletionTimestamp)
			}
			err = d.createGroupWithin(long, nil)
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
			require.False(t, d.waited, "CSI's snapshotter has few workers")

			d.clerk.silent = false
			d.removed()
			done := d.takesGroup(2)
			_, err = d.createGroup("flexlvm/pvc-a", "flexlvm/pvc-b")
			require.NoError(t, err)
			<-done
		})
	}
}

// A group of which only a part was created before its node became silent is not completed.
func TestAPartOfAGroupThatIsNotAnsweredIsDeleted(t *testing.T) {
	d := newDesk(t, another(t, "pvc-a"), another(t, "pvc-b"))
	err := d.createGroupWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	require.NoError(t, d.volumes().Delete(t.Context(), d.snapshots()[1].Name, metav1.DeleteOptions{}))
	d.age(time.Hour)
	d.finalizers()
	err = d.createGroupWithin(long, nil)
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	require.Len(t, d.snapshots(), 1)
	require.NotNil(t, d.snapshots()[0].DeletionTimestamp)
}
