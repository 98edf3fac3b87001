package csicontroller_test

import (
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

	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A class that has become invalid refuses only new snapshots: if the call failed for a snapshot that exists, CSI's
// snapshotter would lose that snapshot.
func TestAClassIsCheckedForNewSnapshotsOnly(t *testing.T) {
	worse := map[string]string{"cow": "1"}
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	_, err := d.createWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	_, err = d.createWithin(brief, worse)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	<-d.takes()
	_, err = d.createWithin(long, worse)
	require.NoError(t, err)
	_, err = d.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1", Secrets: map[string]string{"key": "s3cret"}})
	require.NoError(t, err)

	d = newDesk(t, another(t, "pvc-a"), another(t, "pvc-b"))
	err = d.createGroupWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	err = d.createGroupWithin(brief, worse)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	<-d.takesGroup(2)
	err = d.createGroupWithin(long, worse)
	require.NoError(t, err)
	require.Len(t, d.snapshots(), 2)
}

// The existing part of a group is deleted before the group's class is refused.
func TestAPartOfAGroupOfAWorseClassIsDeleted(t *testing.T) {
	d := newDesk(t, another(t, "pvc-a"), another(t, "pvc-b"))
	err := d.createGroupWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	require.NoError(t, d.volumes().Delete(t.Context(), d.snapshots()[1].Name, metav1.DeleteOptions{}))
	err = d.createGroupWithin(long, map[string]string{"cow": "1"})
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.Empty(t, d.snapshots())
}

// A snapshot that is taken exists even if its PersistentVolume cannot be parsed, so the error is not final.
func TestASnapshotThatCannotBeReadIsNotLost(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	taken := d.takes()
	_, err := d.create(asked, "flexlvm/pvc-1")
	require.NoError(t, err)
	<-taken
	d.change(func(o *corev1.PersistentVolume) { o.Spec.CSI.VolumeAttributes["layout"] = "heap" })
	_, err = d.createWithin(long, nil)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// Forbidden is final only for the creation of a PersistentVolume: for other requests it does not show whether the
// snapshot exists.
func TestWhatIsForbiddenToTheService(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "snap", errors.New("the role is gone"))
	source := func() *corev1.PersistentVolume { return thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})) }
	one := newDesk(t, source())
	_, err := one.createWithin(brief, nil)
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	there := one.snapshots()[0]
	for verb, tt := range map[string]struct {
		objects []runtime.Object
		code    codes.Code
		call    func(*bed) error
	}{
		"get": {[]runtime.Object{source(), &there}, codes.Unavailable, func(b *bed) error {
			_, err := b.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
			return err
		}},
		"create": {[]runtime.Object{source()}, codes.FailedPrecondition, func(b *bed) error {
			_, err := b.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
			return err
		}},
		"delete": {[]runtime.Object{source(), &there}, codes.Unavailable, func(b *bed) error {
			_, err := b.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: there.Spec.CSI.VolumeHandle})
			return err
		}},
		"list": {[]runtime.Object{source(), &there}, codes.Unavailable, func(b *bed) error {
			_, err := csi.NewGroupControllerClient(b.conn).CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: askedGroup, SourceVolumeIds: []string{"flexlvm/pvc-1"}})
			return err
		}},
	} {
		t.Run(verb, func(t *testing.T) {
			b := serveAs(t, csicontroller.Config{Snapshots: &csicontroller.Snapshots{Room: &clerk{}, Seen: one.seen, Now: time.Now}}, tt.objects...)
			b.PrependReactor(verb, "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
			err := tt.call(b)
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			require.ErrorContains(t, err, "the role is gone")
		})
	}
}

// What a webhook denies has no effect, so that the error is final, and the snapshotter can delete the VolumeSnapshot.
// An error that may be of a write with an effect is not final.
func TestAWriteThatAWebhookDenies(t *testing.T) {
	volumes := corev1.Resource("persistentvolumes")
	for name, tt := range map[string]struct {
		err  error
		code codes.Code
	}{
		"denied":           {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: `admission webhook "limits.example.org" denied the request`}}, codes.FailedPrecondition},
		"no webhook":       {apierrors.NewInternalError(errors.New(`failed calling webhook "limits.example.org": no endpoints`)), codes.FailedPrecondition},
		"invalid":          {apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), "snap", nil), codes.FailedPrecondition},
		"stored, perhaps":  {apierrors.NewInternalError(errors.New("etcdserver: request timed out")), codes.Unavailable},
		"too late":         {apierrors.NewTimeoutError("the request has timed out", 1), codes.Unavailable},
		"there already":    {apierrors.NewAlreadyExists(volumes, "snap"), codes.Unavailable},
		"changed":          {apierrors.NewConflict(volumes, "snap", errors.New("it has changed")), codes.Unavailable},
		"too many of them": {apierrors.NewTooManyRequests("later", 1), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := serveAs(t, csicontroller.Config{Snapshots: &csicontroller.Snapshots{Room: &clerk{}, Now: time.Now}}, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
			for _, verb := range []string{"create", "patch"} {
				b.PrependReactor(verb, "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.err })
			}
			_, err := b.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			_, err = csi.NewGroupControllerClient(b.conn).CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: askedGroup, SourceVolumeIds: []string{"flexlvm/pvc-1"}})
			require.Equal(t, tt.code, status.Code(err), "%v", err)
			err = b.modify(t, "flexlvm/pvc-1", map[string]string{"readBps": "1Mi"})
			require.Equal(t, tt.code, status.Code(err), "%v", err)
		})
	}
}
