package dataset

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// behind makes the cache return no PersistentVolumes, or no objects at all.
func (r *rig) behind(all bool) {
	r.cached = interceptor.NewClient(r.client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		if _, is := list.(*corev1.PersistentVolumeList); is || all {
			return nil
		}
		return c.List(ctx, list, o...)
	}})
}

// The caches may not yet show objects that were created just before a VolumeManager is deleted: its finalizer
// stays until they do, and nothing is left afterwards.
func TestDeletedBeforeWhatWasMadeIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		more options
		all  bool
	}{
		"its PersistentVolume": {nil, false},
		"all of it":            {nil, true},
		"a claim to upload":    {options{"resync": "true"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.Progress = func(context.Context, string, string) *protocol.Status { return nil }
			vm := &flexlvmv1.VolumeManager{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v"},
				Spec:       flexlvmv1.VolumeManagerSpec{Volumes: []flexlvmv1.VolumeConfig{volumeOf(flexlvmv1.SourceS3, 1, s3Options(c.more))}},
			}
			require.NoError(t, r.client.Create(t.Context(), vm))
			for range 2 { // adds the finalizer, then creates the first objects
				require.NoError(t, r.look())
			}
			r.behind(c.all)
			require.NoError(t, r.client.Delete(t.Context(), r.get()))
			for range 8 {
				require.NoError(t, r.look())
				require.Contains(t, r.get().Finalizers, Finalizer)
			}
			r.cached = r.client
			for range 16 {
				require.NoError(t, r.look())
			}
			require.Error(t, r.client.Get(t.Context(), client.ObjectKeyFromObject(vm), vm))
			r.requireNothing(t)
		})
	}
}

// requireNothing fails if objects of a VolumeManager are left, except the replicas' PersistentVolumes, which
// Kubernetes deletes with their claims.
func (r *rig) requireNothing(t *testing.T) {
	t.Helper()
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}, &batchv1.JobList{}} {
		require.NoError(t, r.client.List(t.Context(), list, client.HasLabels{replica.LabelOwner}))
		require.Zero(t, meta.LenList(list), "%T", list)
	}
}

// Users can label any number of claims, and annotate each with 256 KiB. They are read in pages, and the last page counts.
func TestWhatIsLeftIsReadInPages(t *testing.T) {
	r := newRig(t)
	vm := r.manager(1)
	pages := 0
	r.live = interceptor.NewClient(r.client, interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		options := (&client.ListOptions{}).ApplyOptions(o)
		require.EqualValues(t, confirmPageSize, options.Limit)
		pages++
		uid := types.UID("seen")
		switch options.Continue {
		case "":
			list.SetContinue("more")
		case "more":
			uid = "unseen"
		}
		list.(*metav1.PartialObjectMetadataList).Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
		return nil
	}})
	s := &cacheView{claims: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{UID: "seen"}}}}
	require.ErrorIs(t, r.confirmNoUnseenObjects(t.Context(), vm, s), errChanged)
	require.Equal(t, 2, pages)
}

// A claim with flexlvm's labels that belongs to no volume, such as a copy of a claim, does not keep the
// VolumeManager from being deleted.
func TestDeletedBesideACopyOfItsClaim(t *testing.T) {
	r := newRig(t)
	r.manager(1)
	r.runs()
	claim := &corev1.PersistentVolumeClaim{}
	require.NoError(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v-a"}, claim))
	require.NoError(t, r.client.Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "copy", Labels: claim.Labels, Annotations: claim.Annotations,
	}}))
	require.NoError(t, r.client.Delete(t.Context(), r.get()))
	for range 12 {
		require.NoError(t, r.look())
	}
	require.Error(t, r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "v"}, &flexlvmv1.VolumeManager{}))
}
