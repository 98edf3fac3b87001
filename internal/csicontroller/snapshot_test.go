package csicontroller_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
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
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A clerk is a fake ledger of one node.
type clerk struct {
	mu       sync.Mutex
	silent   bool
	full     string
	uuids    map[volume.PoolName]string // of the pools' volume groups
	reported map[volume.PoolName]string // those before a change that is not reported yet; nil: uuids
	reserved []string
	written  []string
}

func (c *clerk) NodeOf(label string) (name, report string, reported bool) {
	return label, "", !c.silent
}

func (c *clerk) Reserve(node string, wants []ledger.Want, _ ...volume.Name) (map[volume.PoolName]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.full != "" {
		return nil, &ledger.NoRoomError{Node: node, Why: c.full}
	}
	c.reserved = append(c.reserved, wants[0].PV)
	return c.uuids, nil
}

func (c *clerk) Written(object *corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, object.Name)
}

// A desk is a snapshot service with a fake API server. The test acts for the node.
type desk struct {
	*csicontroller.Service
	t      *testing.T
	server *fake.Clientset
	clerk  *clerk
	waited bool // see within
	later  time.Duration
}

func thin(object *corev1.PersistentVolume) *corev1.PersistentVolume {
	object.Spec.CSI.VolumeAttributes["layout"], object.Spec.CSI.VolumeAttributes["thinPool"] = "thin", "thinpool"
	object.Annotations[pv.AnnotationCharged] = "1203765248"
	object.Status.Phase = corev1.VolumeBound
	return object
}

func linear(object *corev1.PersistentVolume) *corev1.PersistentVolume {
	object = thin(object)
	object.Spec.CSI.VolumeAttributes["layout"] = "linear"
	delete(object.Spec.CSI.VolumeAttributes, "thinPool")
	return object
}

func newDesk(t *testing.T, objects ...*corev1.PersistentVolume) *desk {
	t.Helper()
	d := &desk{t: t, server: fake.NewClientset(), clerk: &clerk{}}
	d.server.PrependReactor("create", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		object := a.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolume)
		object.UID = cmp.Or(object.UID, uuid.NewUUID()) // as the API server does
		return false, nil, nil
	})
	for _, o := range objects {
		_, err := d.volumes().Create(t.Context(), o, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	d.Service = csicontroller.New(d.volumes(), &csicontroller.Snapshots{Room: d.clerk, Seen: d.seen, Now: d.now})
	return d
}

func (d *desk) now() time.Time { return time.Now().Add(d.later) }

// seen returns a PersistentVolume as the provisioner's cache holds it.
func (d *desk) seen(name string) (*corev1.PersistentVolume, error) {
	object, err := d.volumes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	stripped, err := controlplane.Transform(object)
	if err != nil {
		return nil, err
	}
	return stripped.(*corev1.PersistentVolume), nil
}

func (d *desk) volumes() csicontroller.Volumes { return d.server.CoreV1().PersistentVolumes() }

// node calls do with the next PersistentVolume of a snapshot that is not yet taken, in place of its
// node.
func (d *desk) node(do func(object *corev1.PersistentVolume)) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for d.t.Context().Err() == nil {
			list, err := d.volumes().List(context.Background(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
			for i := range list.Items {
				if _, taken := persistentvolume.TakenAt(&list.Items[i]); err == nil && !taken {
					do(&list.Items[i])
					return
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return done
}

func (d *desk) write(object *corev1.PersistentVolume, annotations map[string]*string) {
	for key, value := range annotations {
		if value != nil {
			object.Annotations[key] = *value
		}
	}
	_, err := d.server.CoreV1().PersistentVolumes().Update(context.Background(), object, metav1.UpdateOptions{})
	if err != nil {
		d.t.Error(err)
	}
}

var moment = time.Date(2026, 11, 25, 3, 4, 5, 0, time.UTC)

// takes is a node that takes a snapshot.
func (d *desk) takes() chan struct{} {
	return d.node(func(o *corev1.PersistentVolume) { d.write(o, persistentvolume.Taken(moment, 2*volume.GiB)) })
}

func (d *desk) create(name, source string) (*csi.Snapshot, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	r, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: source, Parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "x"}})
	return r.GetSnapshot(), err
}

const asked = "snapshot-0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"

func TestCreateSnapshot(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	taken := d.takes()
	got, err := d.create(asked, "flexlvm/pvc-1")
	require.NoError(t, err)
	<-taken
	const name = "snap-0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	require.Equal(t, "flexlvm/"+name, got.GetSnapshotId())
	require.Equal(t, "flexlvm/pvc-1", got.GetSourceVolumeId())
	require.Equal(t, moment, got.GetCreationTime().AsTime())
	require.Equal(t, int64(2*volume.GiB), got.GetSizeBytes(), "what its source had by then")
	require.True(t, got.GetReadyToUse())
	require.Equal(t, []string{name}, d.clerk.reserved)
	require.Equal(t, []string{name}, d.clerk.written)

	again, err := d.create(asked, "flexlvm/pvc-1")
	require.NoError(t, err)
	require.Equal(t, got, again)
	require.Len(t, d.clerk.reserved, 1, "it is there")
	_, err = d.create(asked, "flexlvm/pvc-2")
	require.Equal(t, codes.AlreadyExists, status.Code(err), err)

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: got.GetSnapshotId()})
	require.NoError(t, err)
	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: got.GetSnapshotId()})
	require.NoError(t, err, "it is gone")
	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "flexlvm/pvc-1"})
	require.NoError(t, err)
	_, err = d.volumes().Get(t.Context(), "pvc-1", metav1.GetOptions{})
	require.NoError(t, err, "a claim's volume is no snapshot")
}

// If the node reports that it cannot take a snapshot, the PersistentVolume is deleted and the call
// fails permanently. While the node reports nothing, the PersistentVolume stays for the next call.
func TestCreateSnapshotThatTheNodeCannotTake(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	done := d.node(func(o *corev1.PersistentVolume) { d.write(o, persistentvolume.NotTaken("there is nothing to copy")) })
	_, err := d.create(asked, "flexlvm/pvc-1")
	require.Equal(t, codes.FailedPrecondition, status.Code(err), err)
	require.ErrorContains(t, err, "there is nothing to copy")
	<-done
	list, err := d.volumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
	require.NoError(t, err)
	require.Empty(t, list.Items)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "the node says nothing: it may still take it")
	waiting := d.snapshots()
	require.Len(t, waiting, 1, "so it stays")
	waiting[0].Annotations["somebody"] = "was here" // the fake server sets no UIDs
	d.write(&waiting[0], nil)
	d.takes()
	got, err := d.create(asked, "flexlvm/pvc-1")
	require.NoError(t, err)
	require.Equal(t, "flexlvm/"+waiting[0].Name, got.GetSnapshotId())
	taken := d.snapshots()
	require.Len(t, taken, 1)
	require.Contains(t, taken[0].Annotations, "somebody", "it is the same")
}

// A node retries a snapshot that it could not take. If the retry succeeds before the PersistentVolume
// is deleted, the PersistentVolume stays and the next call returns it.
func TestASnapshotThatWasTakenMeanwhileIsNotWithdrawn(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
	fresh := "2" // the fake server sets no resourceVersion and checks no preconditions
	d.server.PrependReactor("delete", "persistentvolumes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		only := a.(clienttesting.DeleteActionImpl).DeleteOptions.Preconditions
		if only == nil || only.ResourceVersion == nil || *only.ResourceVersion == fresh {
			return false, nil, nil
		}
		// The client holds its lock while a reactor runs.
		found, err := d.server.Tracker().Get(a.GetResource(), "", a.(clienttesting.DeleteAction).GetName())
		require.NoError(t, err)
		object := found.(*corev1.PersistentVolume).DeepCopy()
		object.ResourceVersion = fresh
		for name, value := range persistentvolume.Taken(moment, volume.GiB) {
			delete(object.Annotations, name)
			if value != nil {
				object.Annotations[name] = *value
			}
		}
		require.NoError(t, d.server.Tracker().Update(a.GetResource(), object, ""))
		return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), object.Name, errors.New("it has changed"))
	})
	done := d.node(func(o *corev1.PersistentVolume) {
		o.ResourceVersion = "1"
		d.write(o, persistentvolume.NotTaken("the pool is full"))
	})
	_, err := d.create(asked, "flexlvm/pvc-1")
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	<-done
	got, err := d.create(asked, "flexlvm/pvc-1")
	require.NoError(t, err)
	require.Equal(t, moment, got.GetCreationTime().AsTime())

	_, err = d.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: got.GetSnapshotId()})
	require.NoError(t, err)
	list, err := d.volumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
	require.NoError(t, err)
	require.Empty(t, list.Items, "whatever its version")
}

func TestCreateSnapshotRefuses(t *testing.T) {
	released := thin(made("pvc-5", "pvc-5", pv.CSI, volume.IOLimits{}))
	released.Status.Phase = corev1.VolumeReleased
	nested := thin(made("pvc-6", "pvc-6", pv.CSI, volume.IOLimits{}))
	nested.Spec.CSI.VolumeAttributes["kind"] = "dataset"
	for name, tt := range map[string]struct {
		request *csi.CreateSnapshotRequest
		clerk   *clerk
		code    codes.Code
		says    string
	}{
		"no name":       {&csi.CreateSnapshotRequest{SourceVolumeId: "flexlvm/pvc-1"}, nil, codes.InvalidArgument, "name: is missing"},
		"no source":     {&csi.CreateSnapshotRequest{Name: asked}, nil, codes.InvalidArgument, "source_volume_id: is missing"},
		"secrets":       {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1", Secrets: map[string]string{"key": "s3cret"}}, nil, codes.InvalidArgument, "a snapshot needs no key"},
		"parameters":    {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1", Parameters: map[string]string{"cow": "1"}}, nil, codes.InvalidArgument, `parameters "cow": is not known`},
		"not there":     {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-9"}, nil, codes.NotFound, `no PersistentVolume "pvc-9"`},
		"reserve":       {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-2", Parameters: map[string]string{"reserve": "much"}}, nil, codes.InvalidArgument, `reserve "much": is not a percentage`},
		"released":      {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-5"}, nil, codes.FailedPrecondition, "is Released"},
		"a replica":     {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-6"}, nil, codes.FailedPrecondition, `is of kind "dataset"`},
		"no room":       {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"}, &clerk{full: "has no room for it"}, codes.FailedPrecondition, `node "node-1" has no room for it`},
		"a silent node": {&csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"}, &clerk{silent: true}, codes.FailedPrecondition, "has not reported"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})), linear(made("pvc-2", "pvc-2", pv.CSI, volume.IOLimits{})), released.DeepCopy(), nested.DeepCopy())
			if tt.clerk != nil {
				d.clerk.full, d.clerk.silent = tt.clerk.full, tt.clerk.silent
			}
			_, err := d.CreateSnapshot(t.Context(), tt.request)
			require.Equal(t, tt.code, status.Code(err), err)
			require.ErrorContains(t, err, tt.says)
			require.NotContains(t, err.Error(), "s3cret")
			list, err := d.volumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelSnapshot})
			require.NoError(t, err)
			require.Empty(t, list.Items, "nothing was written")
		})
	}
}

// A snapshot of a thick volume has the copy-on-write store that its class sets, and is no longer ready
// once the store has overflowed.
func TestCreateCopyOnWriteSnapshot(t *testing.T) {
	for reserve, says := range map[string]string{"": "", "30%": "30%"} {
		d := newDesk(t, linear(made("pvc-2", "pvc-2", pv.CSI, volume.IOLimits{})), thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})))
		r := &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-2", Parameters: map[string]string{}}
		if reserve != "" {
			r.Parameters[volume.OptionReserve] = reserve
		}
		taken := d.takes()
		got, err := d.CreateSnapshot(t.Context(), r)
		require.NoError(t, err)
		<-taken
		require.True(t, got.GetSnapshot().GetReadyToUse())
		name := strings.TrimPrefix(got.GetSnapshot().GetSnapshotId(), "flexlvm/")
		object, err := d.volumes().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"linear", says, "pvc-2"}, []string{persistentvolume.Options(object)["layout"], persistentvolume.Options(object)["reserve"], persistentvolume.Options(object)["cloneOf"]})

		d.write(object, persistentvolume.NotTaken("it has overflowed"))
		got, err = d.CreateSnapshot(t.Context(), r)
		require.NoError(t, err)
		require.False(t, got.GetSnapshot().GetReadyToUse())

		// The class is valid for thin volumes, too, whose snapshots have no store.
		r.Name, r.SourceVolumeId = "another", "flexlvm/pvc-1"
		taken = d.takes()
		_, err = d.CreateSnapshot(t.Context(), r)
		require.NoError(t, err)
		<-taken
	}
}

func TestListSnapshots(t *testing.T) {
	d := newDesk(t, thin(made("pvc-1", "pvc-1", pv.CSI, volume.IOLimits{})), thin(made("pvc-2", "pvc-2", pv.CSI, volume.IOLimits{})))
	ids := map[string]string{}
	for name, source := range map[string]string{"one": "flexlvm/pvc-1", "two": "flexlvm/pvc-1", "three": "flexlvm/pvc-2"} {
		taken := d.takes()
		got, err := d.create(name, source)
		require.NoError(t, err)
		<-taken
		ids[name] = got.GetSnapshotId()
	}
	list := func(r *csi.ListSnapshotsRequest) ([]string, string) {
		t.Helper()
		out, err := d.ListSnapshots(t.Context(), r)
		require.NoError(t, err)
		var got []string
		for _, e := range out.GetEntries() {
			got = append(got, e.GetSnapshot().GetSnapshotId())
		}
		return got, out.GetNextToken()
	}
	all, next := list(&csi.ListSnapshotsRequest{})
	require.ElementsMatch(t, []string{ids["one"], ids["two"], ids["three"]}, all)
	require.Empty(t, next)
	of, _ := list(&csi.ListSnapshotsRequest{SourceVolumeId: "flexlvm/pvc-1"})
	require.ElementsMatch(t, []string{ids["one"], ids["two"]}, of)
	one, _ := list(&csi.ListSnapshotsRequest{SnapshotId: ids["three"]})
	require.Equal(t, []string{ids["three"]}, one)
	for _, none := range []string{"flexlvm/pvc-1", "flexlvm/snap-9", "nonsense"} {
		got, _ := list(&csi.ListSnapshotsRequest{SnapshotId: none})
		require.Empty(t, got)
	}
	first, next := list(&csi.ListSnapshotsRequest{MaxEntries: 2})
	rest, end := list(&csi.ListSnapshotsRequest{StartingToken: next})
	require.Equal(t, all, append(first, rest...))
	require.Empty(t, end)
	_, err := d.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{StartingToken: "invalid-token"})
	require.Equal(t, codes.Aborted, status.Code(err))
}

// A service without a ledger offers no snapshots.
func TestNoSnapshots(t *testing.T) {
	s := csicontroller.New(fake.NewClientset().CoreV1().PersistentVolumes(), nil)
	_, create := s.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: asked, SourceVolumeId: "flexlvm/pvc-1"})
	_, remove := s.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "flexlvm/snap-1"})
	_, list := s.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
	for _, err := range []error{create, remove, list} {
		require.Equal(t, codes.Unimplemented, status.Code(err))
	}
	can, err := newDesk(t).ControllerGetCapabilities(t.Context(), &csi.ControllerGetCapabilitiesRequest{})
	require.NoError(t, err)
	require.Len(t, can.GetCapabilities(), 3)
}
