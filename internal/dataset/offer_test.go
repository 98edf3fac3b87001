package dataset

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// shared returns a volume that reads volume a of VolumeManager ns/v.
func shared() flexlvmv1.VolumeConfig {
	return flexlvmv1.VolumeConfig{
		ID: "b", Replicas: 1, SourceType: flexlvmv1.SourceShared, AccessMode: corev1.ReadOnlyMany, Capacity: "1Gi", Labels: map[string]flexlvmv1.LabelValue{"k": "v"},
		Options: options{"namespace": "ns", "name": "v", "volume": "a"},
	}
}

// guest creates a VolumeManager in a namespace that reads the volume offered by ns.
func (r *rig) guest(namespace string) *flexlvmv1.VolumeManager {
	r.Helper()
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "g"}, Spec: flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{shared()}}}
	require.NoError(r, r.client.Create(r.Context(), vm))
	return vm
}

// looks reconciles a guest's VolumeManager several times and returns it; nil if it is gone.
func (r *rig) looks(vm *flexlvmv1.VolumeManager) *flexlvmv1.VolumeManager {
	r.Helper()
	for range 6 {
		r.kubernetes()
		if claim, _ := r.readersOf(vm); claim != nil && claim.Status.Phase == "" {
			claim.Status.Phase = corev1.ClaimBound
			require.NoError(r, r.client.Status().Update(r.Context(), claim))
		}
		_, err := r.Reconcile(r.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(vm)})
		require.NoError(r, err)
		if err := r.client.Get(r.Context(), client.ObjectKeyFromObject(vm), vm); err != nil {
			require.NoError(r, client.IgnoreNotFound(err))
			return nil
		}
	}
	return vm
}

// offers replaces the namespaces that the volume is offered to.
func (r *rig) offers(namespaces ...string) {
	r.Helper()
	vm := r.get()
	vm.Spec.Volumes[0].SharedWith = namespaces
	vm.Generation++
	require.NoError(r, r.client.Update(r.Context(), vm))
}

func (r *rig) readersOf(vm *flexlvmv1.VolumeManager) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	r.Helper()
	claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
	if err := r.client.Get(r.Context(), client.ObjectKey{Namespace: vm.Namespace, Name: "g-b"}, claim); err != nil {
		require.NoError(r, client.IgnoreNotFound(err))
		claim = nil
	}
	if err := r.client.Get(r.Context(), client.ObjectKey{Name: replica.ReadersPV(hash(vm, "b"))}, volume); err != nil {
		require.NoError(r, client.IgnoreNotFound(err))
		volume = nil
	}
	return claim, volume
}

// newOffer returns a rig in which ns/v has loaded its volume.
func newOffer(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.manager(1)
	for range 8 {
		require.NoError(t, r.look())
	}
	require.Equal(t, flexlvmv1.StateRunning, r.get().Status.State)
	return r
}

const refusal = `VolumeManager ns/v offers no volume "a" to namespace thief: its owner has to name this namespace in the volume's sharedWith`

// A namespace that sharedWith does not name gets nothing and learns nothing: neither whether there is such a
// VolumeManager, nor which volumes it has.
func TestSharedWithNobodyElse(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	thief := r.looks(r.guest("thief"))
	require.Equal(t, flexlvmv1.StateFailed, thief.Status.State)
	require.Equal(t, refusal, thief.Status.Volumes[0].Message)
	claim, volume := r.readersOf(thief)
	require.Nil(t, claim)
	require.Nil(t, volume)
	for _, change := range []func(options){
		func(o options) { o["volume"] = "another" }, func(o options) { o["name"] = "another" }, func(o options) { o["namespace"] = "another" },
	} {
		thief.Spec.Volumes[0] = shared()
		change(thief.Spec.Volumes[0].Options)
		require.NoError(t, r.client.Update(t.Context(), thief))
		thief = r.looks(thief)
		require.Contains(t, thief.Status.Volumes[0].Message, "to namespace thief: its owner has to name this namespace in the volume's sharedWith")
		require.Contains(t, thief.Status.Volumes[0].Message, "offers no volume")
	}
}

func TestShared(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	guest := r.looks(r.guest("team"))
	require.Equal(t, flexlvmv1.StateRunning, guest.Status.State, "%+v", guest.Status)
	claim, volume := r.readersOf(guest)
	of := hash(r.get(), "a")
	require.Equal(t, "team/g-b", volume.Spec.ClaimRef.Namespace+"/"+volume.Spec.ClaimRef.Name)
	require.Equal(t, volume.Name, claim.Spec.VolumeName)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, volume.Spec.AccessModes)
	require.True(t, volume.Spec.CSI.ReadOnly)
	require.Equal(t, "ds-"+of, volume.Spec.CSI.VolumeAttributes["volume"])
	require.Equal(t, "true", volume.Spec.CSI.VolumeAttributes["readOnly"])
	require.Equal(t, "ns", volume.Spec.CSI.VolumeAttributes["ownerNamespace"])
	require.Equal(t, "team", volume.Spec.CSI.VolumeAttributes["namespace"])
	require.Equal(t, replica.NodeLabel(of), volume.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Key)
	require.Equal(t, of, volume.Labels[replica.LabelShared])
	require.NoError(t, r.look())
	require.Equal(t, []string{"team/g-b"}, r.get().Status.Volumes[0].SharedClaims)

	// The pods of the other namespace count among those that use the owner's volume.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{
		Name: "d", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "g-b"}},
	}}}}
	require.NoError(t, r.client.Create(t.Context(), pod))
	s, err := r.list(t.Context(), r.get())
	require.NoError(t, err)
	observed, err := r.observe(t.Context(), r.get(), r.get().Spec.All()[0], s)
	require.NoError(t, err)
	var users []string
	require.NoError(t, r.consumers(t.Context(), observed, func(p *corev1.Pod) { users = append(users, p.Namespace+"/"+p.Name) }))
	require.Equal(t, []string{"team/p"}, users)
	pod.Namespace = "other"
	require.False(t, observed.consumes(pod), "a claim of that name elsewhere is another")
}

// Nothing is deleted unless the API server itself confirms that the offer is gone; the cache alone does not
// suffice.
func TestSharedStaysInAnyDoubt(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	guest := r.looks(r.guest("team"))
	look := func() {
		t.Helper()
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "team", Name: "g"}})
		require.NoError(t, err)
		claim, volume := r.readersOf(guest)
		require.NotNil(t, claim)
		require.NotNil(t, volume)
		require.Nil(t, claim.DeletionTimestamp)
	}
	broken := errors.New("broken")
	stale := &staleReader{Reader: r.client}
	r.cached = stale
	look() // the cache does not have the owner, and the API server does
	r.live = failing{broken}
	look()
	r.cached, r.live = r.client, r.client

	// An owner's spec that cannot be parsed withdraws nothing.
	vm := r.get()
	vm.Spec.Volumes[0].Options["parallel"] = "many"
	require.NoError(t, r.client.Update(t.Context(), vm))
	look()
}

// staleReader is a cache without VolumeManager ns/v.
type staleReader struct{ client.Reader }

func (s *staleReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	if _, is := object.(*flexlvmv1.VolumeManager); is && key.Namespace == "ns" {
		key.Name = "none"
	}
	return s.Reader.Get(ctx, key, object, o...)
}

type failing struct{ err error }

func (f failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return f.err
}
func (f failing) List(context.Context, client.ObjectList, ...client.ListOption) error { return f.err }

// If an offer is withdrawn, the claim is deleted: Kubernetes keeps it for the pods that use it, and no new pod
// can start with it.
func TestSharedOfferIsWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(*rig){
		"not named any more": func(r *rig) { r.offers("another") },
		"completed": func(r *rig) {
			vm := r.get()
			vm.Spec.State = flexlvmv1.StateCompleted
			require.NoError(r, r.client.Update(r.Context(), vm))
		},
		"deleted": func(r *rig) { require.NoError(r, r.client.Delete(r.Context(), r.get())) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newOffer(t)
			r.offers("team")
			guest := r.looks(r.guest("team"))
			claim, _ := r.readersOf(guest)
			claim.Finalizers = append(claim.Finalizers, "kubernetes.io/pvc-protection")
			require.NoError(t, r.client.Update(t.Context(), claim))
			withdraw(r)
			guest = r.looks(guest)
			require.Equal(t, flexlvmv1.StateFailed, guest.Status.State)
			require.Contains(t, guest.Status.Volumes[0].Message, "to namespace team: its owner has to name this namespace in the volume's sharedWith; running pods keep it, and no new pod can start")
			claim, volume := r.readersOf(guest)
			require.NotNil(t, claim.DeletionTimestamp)
			require.Nil(t, volume.DeletionTimestamp)
			// While a pod of the other namespace may read it, the owner's replicas stay.
			for range 6 {
				require.NoError(t, r.look())
			}
			require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a-0"}, &corev1.PersistentVolumeClaim{}))
			claim.Finalizers = nil
			require.NoError(t, r.client.Update(t.Context(), claim))
			guest = r.looks(guest)
			claim, volume = r.readersOf(guest)
			require.Nil(t, claim)
			require.Nil(t, volume)
		})
	}
}

// A recreated VolumeManager of the same name has other data, so a PersistentVolume leads to a dataset by its
// hash.
func TestSharedLeadsToTheOneThatIsOffered(t *testing.T) {
	r := newOffer(t)
	r.offers("team")
	guest := r.looks(r.guest("team"))
	_, volume := r.readersOf(guest)
	require.False(t, leadsTo(volume, Offer{Hash: "0123456789abcdef"}))
	require.True(t, leadsTo(volume, Offer{Hash: hash(r.get(), "a")}))
	require.NoError(t, r.client.Delete(t.Context(), guest))
	require.Nil(t, r.looks(guest))
	claim, volume := r.readersOf(&flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "g", UID: "g-uid"}})
	require.Nil(t, claim)
	require.Nil(t, volume)
}

func TestSharedIsWrittenWrong(t *testing.T) {
	v := shared()
	delete(v.Options, "name")
	_, err := ParseSource(v)
	require.ErrorContains(t, err, `name "" and volume "a": all have to be set`)
	for _, kind := range []flexlvmv1.SourceType{flexlvmv1.SourceS3Dev, flexlvmv1.SourceShared} {
		v := volumeOf(kind, 1, s3Options(nil))
		if kind == flexlvmv1.SourceShared {
			v = shared()
		}
		v.SharedWith = []string{"team"}
		_, err = ParseSource(v)
		require.ErrorContains(t, err, "only replicas that consumers read can be offered")
	}
	v = volumeOf("S3", 1, s3Options(options{"resync": "true"}))
	v.SharedWith = []string{"team"}
	_, err = ParseSource(v)
	require.ErrorContains(t, err, "sharedWith with resync: only replicas that consumers read can be offered")
	v.Options["resync"] = "false"
	_, err = ParseSource(v)
	require.NoError(t, err)
}

func TestReadersAreReconciled(t *testing.T) {
	r := newRig(t)
	guest, vm := r.guest("team"), r.manager(1)
	r.guest("team-2")
	other := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "w"}}
	require.Len(t, r.requestsForReaders(t.Context(), vm), 2)
	require.Equal(t, client.ObjectKeyFromObject(guest), r.requestsForReaders(t.Context(), vm)[0].NamespacedName)
	require.Empty(t, r.requestsForReaders(t.Context(), other))
}
