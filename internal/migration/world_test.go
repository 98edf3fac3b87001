package migration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

var (
	key       = types.NamespacedName{Namespace: "shop", Name: "data"}
	errKilled = errors.New("killed")
)

// A world is a fake API server with a bound claim and the actions of kube-controller-manager.
type world struct {
	client.Client
	t      *testing.T
	raw    client.Client // not counted, and never killed
	uids   int
	writes int
	// killAt is the number of the write after which the caller is killed. 0 means never.
	killAt int
	// between runs before each write, with the write's number.
	between func(write int)
	// away stops kube-controller-manager.
	away bool
	// deleted reports that the test has deleted the claim.
	deleted bool
}

func newWorld(t *testing.T, door pv.Door, change ...func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)) *world {
	t.Helper()
	d := pv.Description{
		Name: "pvc-1", Node: "node1", Hostname: "node1", Door: door,
		Spec: volume.Spec{
			Group: "flexlvm", Name: "pvc-1", Size: volume.GiB, Kind: volume.Claim, Layout: volume.Linear,
			Cluster: evictiontest.Cluster, Namespace: key.Namespace,
		},
		Charged: 2 * volume.GiB, Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone},
		OnNodeLoss: volume.OnNodeLossRelease,
	}
	object := persistentvolume.New(d, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	object.UID, object.Finalizers = "uid-of-old", append(object.Finalizers, protection)
	object.Labels["team"] = "shop"
	object.Annotations[pv.AnnotationProvisionedBy] = pv.Provisioner
	object.Annotations[pv.AnnotationPreResizeCapacity] = "512Mi"
	object.Spec.StorageClassName = "flexlvm"
	object.Spec.ClaimRef = claimRef(key.Namespace, key.Name, "uid-of-claim")
	object.Status.Phase = corev1.VolumeBound
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "uid-of-claim"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: object.Spec.Capacity},
	}
	for _, c := range change {
		c(object, claim)
	}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "flexlvm.io", NodeID: "node1"}}}}
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, storagev1.AddToScheme(scheme))
	w := &world{t: t}
	under := fake.NewClientBuilder().WithScheme(scheme).WithObjects(object, claim, node).Build()
	w.raw = under
	w.Client = interceptor.NewClient(under, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return w.write(func() error {
				if p, is := o.(*corev1.PersistentVolume); is && p.Spec.CSI == nil && p.Spec.VolumeAttributesClassName != nil {
					return apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), p.Name, nil)
				}
				w.uids++
				o.SetUID(types.UID(fmt.Sprintf("uid-%d", w.uids)))
				o.SetFinalizers(append(slices.Clone(o.GetFinalizers()), protection))
				return c.Create(ctx, o, options...)
			})
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			return w.write(func() error { return c.Patch(ctx, o, p, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return w.write(func() error { return c.Delete(ctx, o, options...) })
		},
	})
	return w
}

// write performs one write. A caller that is killed after it does not get its result.
func (w *world) write(do func() error) error {
	if w.killAt > 0 && w.writes >= w.killAt {
		return errKilled
	}
	w.writes++
	if w.between != nil {
		w.between(w.writes)
	}
	if err := do(); err != nil {
		return err
	}
	w.kept()
	if !w.away {
		w.kubernetes()
		w.kept()
	}
	if w.writes == w.killAt {
		return errKilled
	}
	return nil
}

// kubernetes does what kube-controller-manager does with claims and PersistentVolumes.
func (w *world) kubernetes() {
	ctx := w.t.Context()
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(w.t, client.IgnoreNotFound(w.raw.Get(ctx, key, claim)))
	for _, object := range w.volumes() {
		before := object.DeepCopy()
		ref := object.Spec.ClaimRef
		if ref.UID == claim.UID {
			object.Status.Phase = corev1.VolumeBound
		} else {
			object.Status.Phase = corev1.VolumeReleased
		}
		phase := object.Status.Phase
		if phase != before.Status.Phase {
			require.NoError(w.t, w.raw.Status().Patch(ctx, &object, client.MergeFrom(before)))
		}
		if object.DeletionTimestamp != nil && phase != corev1.VolumeBound {
			w.change(object.Name, func(p *corev1.PersistentVolume) {
				p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == protection })
			})
		}
	}
	if claim.Name == "" {
		return
	}
	before := claim.DeepCopy()
	object := &corev1.PersistentVolume{}
	err := w.raw.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, object)
	switch {
	case apierrors.IsNotFound(err):
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimLost, nil
	case claim.Status.Phase == corev1.ClaimLost && object.Spec.ClaimRef.UID == claim.UID:
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, object.Spec.Capacity.DeepCopy()
		if text, there := object.Annotations[pv.AnnotationPreResizeCapacity]; there {
			claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: quantity(text)}
		}
	}
	if claim.Status.Phase != before.Status.Phase {
		require.NoError(w.t, w.raw.Status().Patch(ctx, claim, client.MergeFrom(before)))
	}
}

// kept fails the test if, given the API's current objects, the node daemon would release the volume or
// the provisioner would promise its space to another. The daemon is under pressure and evicts orphans.
func (w *world) kept() {
	w.t.Helper()
	s := evictiontest.New()
	s.Policy.EvictOrphans, s.Policy.OrphanAge, s.Policy.OrphanShare = true, time.Second, 100
	s.Volume("pvc-1", volume.Ready, 2)
	charged := volume.Bytes(0)
	for _, object := range w.volumes() {
		if object.Labels[pv.LabelNode] == "" {
			continue // not in any node's list
		}
		c, err := persistentvolume.Parse(&object)
		require.NoError(w.t, err)
		s.View.PersistentVolumes = append(s.View.PersistentVolumes, c)
		if c.Volume == "pvc-1" {
			charged += c.Charge().Noted
		}
	}
	require.GreaterOrEqual(w.t, charged, 2*volume.GiB)
	s.PersistentVolume("big", 500)
	for _, v := range eviction.Judge(s.View) {
		require.NotEqual(w.t, eviction.ActionRelease, v.Action, v.Why)
		require.True(w.t, w.deleted, "a person is told: %s", v.Why)
	}
	result := s.Plan()
	require.Empty(w.t, result.Orphans)
	require.Empty(w.t, result.Evictions)
}

func (w *world) volumes() []corev1.PersistentVolume {
	w.t.Helper()
	list := &corev1.PersistentVolumeList{}
	require.NoError(w.t, w.raw.List(w.t.Context(), list))
	return list.Items
}

// volume returns a PersistentVolume, or nil if it does not exist.
func (w *world) volume(name string) *corev1.PersistentVolume {
	w.t.Helper()
	object := &corev1.PersistentVolume{}
	err := w.raw.Get(w.t.Context(), client.ObjectKey{Name: name}, object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(w.t, err)
	return object
}

func (w *world) claim() *corev1.PersistentVolumeClaim {
	w.t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(w.t, w.raw.Get(w.t.Context(), key, claim))
	return claim
}

// change changes a PersistentVolume behind the mover's back.
func (w *world) change(name string, change func(*corev1.PersistentVolume)) {
	w.t.Helper()
	object := w.volume(name)
	before := object.DeepCopy()
	change(object)
	require.NoError(w.t, w.raw.Patch(w.t.Context(), object, client.MergeFrom(before)))
}

// current sets the VolumeAttributesClass that the claim's status reports as in force.
func (w *world) current(class string) {
	w.t.Helper()
	claim := w.claim()
	before := claim.DeepCopy()
	claim.Status.CurrentVolumeAttributesClassName = &class
	require.NoError(w.t, w.raw.Status().Patch(w.t.Context(), claim, client.MergeFrom(before)))
}

func (w *world) put(objects ...client.Object) {
	w.t.Helper()
	for _, o := range objects {
		require.NoError(w.t, w.raw.Create(w.t.Context(), o))
	}
}

func (w *world) move(door pv.Door) error {
	return (&Mover{Client: w.Client, Timeout: time.Minute}).Move(w.t.Context(), key, door)
}
