package provision

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// picky serves claims on node-2, and reschedules those of other nodes.
type picky struct{ rescheduled *rescheduleGuard }

func (p picky) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	return !p.rescheduled.outdated(claim)
}

func (picky) Provision(_ context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if o.SelectedNodeName != "node-2" {
		return nil, reschedule, errors.New("no room")
	}
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.PVName}}, finished, nil
}

func (picky) Delete(context.Context, *corev1.PersistentVolume) error { return nil }

// The API server is slow to answer the update that removes a claim's node. Before it does, the scheduler chooses
// another node, and the watch shows that.
func TestNodeNamedBeforeTheAnswer(t *testing.T) {
	const claims = "persistentvolumeclaims"
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Provisioner: pv.Provisioner, VolumeBindingMode: &wait}
	data := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: "data", Namespace: "n", UID: types.UID("uid"), ResourceVersion: "1",
			Annotations: map[string]string{pv.AnnotationSelectedNode: "node-1", "volume.kubernetes.io/storage-provisioner": pv.Provisioner},
		},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class.Name},
	}
	client := fake.NewClientset(class, data)
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().PersistentVolumeClaims().Informer()
	lister := factory.Core().V1().PersistentVolumeClaims().Lister()
	client.PrependReactor("update", claims, func(action k8stesting.Action) (bool, runtime.Object, error) {
		sent := action.(k8stesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim)
		stored := sent.DeepCopy()
		stored.ResourceVersion = "2"
		require.NoError(t, client.Tracker().Update(action.GetResource(), stored, sent.Namespace))
		named := stored.DeepCopy()
		named.ResourceVersion, named.Annotations[pv.AnnotationSelectedNode] = "3", "node-2"
		require.NoError(t, client.Tracker().Update(action.GetResource(), named, sent.Namespace))
		require.Eventually(t, func() bool {
			seen, err := lister.PersistentVolumeClaims("n").Get("data")
			return err == nil && seen.ResourceVersion == "3"
		}, time.Minute, time.Millisecond)
		return true, stored, nil
	})

	rescheduled := newRescheduleGuard()
	guarded, err := rescheduled.claims(informer)
	require.NoError(t, err)
	c := controller.NewProvisionController(t.Context(), client, pv.Provisioner, picky{rescheduled},
		append(controlplane.LibraryOptions(2, NewMetrics().library), controller.ClaimsInformer(guarded),
			controller.VolumesInformer(factory.Core().V1().PersistentVolumes().Informer()),
			controller.ClassesInformer(factory.Storage().V1().StorageClasses().Informer()))...)
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	// The fake server loses changes between a list and its watch.
	require.Eventually(t, func() bool {
		watched := data.DeepCopy()
		watched.Labels = map[string]string{"watched": "yes"}
		require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource(claims), watched, "n"))
		seen, err := lister.PersistentVolumeClaims("n").Get("data")
		return err == nil && len(seen.Labels) > 0
	}, time.Minute, time.Millisecond)
	go c.Run(t.Context())
	require.Eventually(t, func() bool {
		_, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid", metav1.GetOptions{})
		return err == nil
	}, time.Minute, 20*time.Millisecond, "the node that the scheduler has named is not seen")
	require.False(t, rescheduled.outdated(data), "what was noted is forgotten")
}

func TestRescheduleGuard(t *testing.T) {
	rescheduled := newRescheduleGuard()
	claim := func(version string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "uid", ResourceVersion: version}}
	}
	require.False(t, rescheduled.outdated(claim("1")))
	rescheduled.note(claim("1"))
	require.True(t, rescheduled.outdated(claim("1")), "as it was")
	require.False(t, rescheduled.outdated(claim("2")))
	require.False(t, rescheduled.outdated(claim("1")), "it is known no longer")
	rescheduled.note(claim("2"))
	rescheduled.forget(claim("5"))
	require.Empty(t, rescheduled.states, "a deleted claim leaves nothing")
}
