package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// left returns the later PersistentVolume of a claim shop/data, whose earlier volume the node of
// cluster reports as released.
func left(door pv.Door, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
	object := persistentvolume.New(pv.Description{
		Name: "pvc-9", Node: "node-1", Hostname: "host-1", Door: door, Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone},
		Spec: volume.Spec{Group: "flexlvm", Name: "pvc-9", Size: volume.GiB, Namespace: "shop", Kind: volume.Claim},
	}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimDelete)
	object.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "data-of-today"}
	object.Status.Phase = phase
	return object
}

// The PersistentVolume of the claim that was deleted today still exists. Undelete, retain and forget do
// not act on an earlier released volume of the same claim name instead.
func TestTheVolumeThatWasMeantIsNotReleasedYet(t *testing.T) {
	none := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "other"}}
	leaving := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "data-of-today", Finalizers: []string{"kubernetes.io/pvc-protection"}, DeletionTimestamp: &metav1.Time{Time: time.Now()}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-9"},
	}
	for name, tt := range map[string]struct {
		object *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
	}{
		"released, of the FlexVolume driver": {left(pv.Flex, corev1.VolumeReleased), none},
		"released, of the CSI driver":        {left(pv.CSI, corev1.VolumeReleased), none},
		"its claim has gone just now":        {left(pv.CSI, corev1.VolumeBound), none},
		"its claim is being deleted":         {left(pv.Flex, corev1.VolumeBound), leaving},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster(t, brings(t), tt.object.DeepCopy(), tt.claim.DeepCopy())
			says := func(err error) {
				t.Helper()
				require.ErrorContains(t, err, "claim shop/data had several volumes. To use the released one, give:")
				require.ErrorContains(t, err, "--volume pvc-3 (node node-1, ")
				require.ErrorContains(t, err, "PersistentVolume pvc-9 ("+string(tt.object.Status.Phase))
				require.ErrorContains(t, err, "kubectl patch pv NAME -p")
			}
			says(asked(nil).undelete(t.Context(), c, &bytes.Buffer{}))
			says(asked(func(o *undeleteOptions) { o.dryRun = true }).undelete(t.Context(), c, &bytes.Buffer{}))
			require.Error(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, &corev1.PersistentVolume{}), "nothing is made")
			for _, to := range []volume.State{volume.Retained, volume.Unreferenced} {
				o := &requestOptions{wanted: overview.Wanted{Namespace: "shop", Claim: "data"}, to: to, wait: time.Second}
				says(o.submit(t.Context(), c, &bytes.Buffer{}))
			}
			storage := &flexlvmv1.NodeStorage{}
			require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
			require.Empty(t, storage.Spec.Requests, "nothing is asked of the node")
		})
	}
	// Naming the volume selects it.
	c := cluster(t, brings(t), left(pv.Flex, corev1.VolumeReleased))
	require.NoError(t, asked(func(o *undeleteOptions) { o.wanted.Volume = "pvc-3" }).undelete(t.Context(), c, &bytes.Buffer{}))

	// If no released volume has the claim's name, or several do, the PersistentVolume is named, too.
	c = cluster(t, brings(t), left(pv.Flex, corev1.VolumeReleased))
	storage := &flexlvmv1.NodeStorage{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	for _, released := range [][]flexlvmv1.ReleasedVolume{nil, {storage.Status.Released[0], storage.Status.Released[0]}} {
		storage.Status.Released = released
		require.NoError(t, c.Update(t.Context(), storage))
		require.ErrorContains(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}), "PersistentVolume pvc-9 (Released")
	}
}

// The node reports the later volume as released and its PersistentVolume is deleted while the plugin
// reads. The volume is in the first or in the second list.
func TestTheVolumeThatWasMeantIsReleasedMeanwhile(t *testing.T) {
	later := left(pv.CSI, corev1.VolumeReleased)
	later.Finalizers = nil
	c := cluster(t, brings(t), later.DeepCopy())
	lists := 0
	meanwhile := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context, to client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
		if lists++; lists == 2 {
			storage := &flexlvmv1.NodeStorage{}
			require.NoError(t, to.Get(ctx, client.ObjectKey{Name: "node-1"}, storage))
			released := storage.Status.Released[0]
			released.Name, released.FilesystemUUID = later.Name, "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"
			storage.Status.Released = append(storage.Status.Released, released)
			require.NoError(t, to.Update(ctx, storage))
			require.NoError(t, to.Delete(ctx, later.DeepCopy()))
		}
		return to.List(ctx, l, options...)
	}})
	require.ErrorContains(t, asked(nil).undelete(t.Context(), meanwhile, &bytes.Buffer{}), "there are 2 released volumes of claim shop/data")
}

// A new claim of the same name has its own volume: the old volume is retained by the claim's name, as
// docs/undelete.md says. It is not if the objects that would show another volume cannot be read.
func TestRetainWhileTheClaimIsThereAnew(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "data-of-today"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-9"}}
	c := cluster(t, brings(t), left(pv.Flex, corev1.VolumeBound), claim)
	w := overview.Wanted{Namespace: "shop", Claim: "data"}
	meant := func(c client.Client) (overview.Candidate, error) {
		there, err := readCandidates(t.Context(), c, w)
		require.NoError(t, err)
		return there.pick(overview.FindAny)
	}
	found, err := meant(c)
	require.NoError(t, err)
	require.Equal(t, "pvc-3", found.Released.Name)

	for kind, failing := range map[string]interceptor.Funcs{
		"PersistentVolumes": {List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, options ...client.ListOption) error {
			if _, is := l.(*corev1.PersistentVolumeList); is {
				return errors.New("forbidden")
			}
			return c.List(ctx, l, options...)
		}},
		"claim": {Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, is := o.(*corev1.PersistentVolumeClaim); is {
				return errors.New("forbidden")
			}
			return c.Get(ctx, key, o, options...)
		}},
	} {
		_, err = meant(interceptor.NewClient(c.(client.WithWatch), failing))
		require.ErrorContains(t, err, kind)
		require.ErrorContains(t, err, "forbidden; --volume pvc-3 selects this volume without that check")
	}
}

// The claim of a restored volume is deleted again. Its PersistentVolume, which is still bound to it for
// a moment, does not count as an undelete in progress.
func TestUndeleteOfAClaimThatIsBeingDeleted(t *testing.T) {
	c := cluster(t, brings(t))
	require.NoError(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}))
	object := &corev1.PersistentVolume{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "pvc-3"}, object))
	object.Status.Phase = corev1.VolumeBound
	require.NoError(t, c.Status().Update(t.Context(), object))
	storage := &flexlvmv1.NodeStorage{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Name: "node-1"}, storage))
	storage.Status.Released = nil
	require.NoError(t, c.Update(t.Context(), storage))
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, claim))
	claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
	require.NoError(t, c.Update(t.Context(), claim))
	require.NoError(t, c.Delete(t.Context(), claim))
	require.ErrorContains(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}), "claim shop/data is being deleted, and its PersistentVolume pvc-3 still exists")
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
	claim.Finalizers = nil
	require.NoError(t, c.Update(t.Context(), claim))
	require.ErrorContains(t, asked(nil).undelete(t.Context(), c, &bytes.Buffer{}), "claim shop/data is being deleted, and its PersistentVolume pvc-3 still exists")
	require.Error(t, c.Get(t.Context(), client.ObjectKeyFromObject(claim), claim), "no claim is made for it")
}
