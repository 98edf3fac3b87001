package dataset

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// If any request fails on the way to a deletion, nothing is deleted.
func TestNothingIsDeletedWhileUnsure(t *testing.T) {
	away := errors.New("the API server is away")
	for name, fail := range map[string]func(verb string, object any) error{
		"claims cannot be listed": func(verb string, o any) error {
			if _, is := o.(*corev1.PersistentVolumeClaimList); is && verb == "list" {
				return away
			}
			return nil
		},
		"pods cannot be listed": func(verb string, o any) error {
			if _, is := o.(*corev1.PodList); is && verb == "list" {
				return away
			}
			return nil
		},
		"PersistentVolumes cannot be listed": func(verb string, o any) error {
			if _, is := o.(*corev1.PersistentVolumeList); is && verb == "list" {
				return away
			}
			return nil
		},
		"nodes cannot be listed": func(verb string, o any) error {
			if _, is := o.(*metav1.PartialObjectMetadataList); is && verb == "list" {
				return away
			}
			return nil
		},
		"labels cannot be taken off": func(verb string, o any) error {
			if p, is := o.(*metav1.PartialObjectMetadata); is && verb == "patch" && p.Kind == "Node" {
				return away
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.manager(2)
			r.runs()
			vm := r.get()
			vm.Spec.State = flexlvmv1.StateCompleted
			require.NoError(t, r.client.Update(t.Context(), vm))
			r.fail = fail
			for range 5 {
				require.ErrorIs(t, r.look(), away)
			}
			require.Empty(t, r.deleted())
		})
	}
}

// If the API server has a newer spec than the cache, nothing is deleted for the old one.
func TestNothingIsDeletedThatIsWantedAgain(t *testing.T) {
	r := newRig(t)
	r.manager(2)
	r.runs()
	vm := r.get()
	vm.Generation, vm.Spec.State = 2, flexlvmv1.StateCompleted
	require.NoError(t, r.client.Update(t.Context(), vm))
	behind := r.get()
	vm.Generation, vm.Spec.State = 3, flexlvmv1.StateRunning
	require.NoError(t, r.client.Update(t.Context(), vm))
	for range 5 {
		_, err := r.step(t.Context(), behind.DeepCopy())
		require.ErrorIs(t, err, errChanged)
	}
	require.Empty(t, r.deleted())
}

// If the cache does not show a node label that was just written, the replica on that node is not deleted.
func TestNothingIsDeletedBelowALabel(t *testing.T) {
	r := newRig(t)
	r.manager(1)
	r.runs()
	for _, o := range r.nodes.List() {
		old := o.(*corev1.Node).DeepCopy()
		old.Labels = nil
		require.NoError(t, r.nodes.Update(old))
	}
	vm := r.get()
	vm.Generation, vm.Spec.Volumes[0].Options = 2, s3Options(options{"exclude": "*.tmp"})
	require.NoError(t, r.client.Update(t.Context(), vm))
	_, err := r.step(t.Context(), r.get())
	require.ErrorIs(t, err, errChanged)
	require.Empty(t, r.deleted())
}

// An existing claim with the readers' name that is not of this volume is left alone and reported. No
// PersistentVolume is created, as that claim could bind it.
func TestStranger(t *testing.T) {
	r := newRig(t)
	stranger := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "v-a"}}
	require.NoError(t, r.client.Create(t.Context(), stranger))
	r.manager(1)
	for range 5 {
		require.NoError(t, r.look())
	}
	status := r.get().Status
	require.Equal(t, flexlvmv1.StateFailed, status.State)
	require.Contains(t, status.Volumes[0].Message, `PersistentVolumeClaim "v-a" already exists and does not belong to this volume`)
	volumes := &corev1.PersistentVolumeList{}
	require.NoError(t, r.client.List(t.Context(), volumes))
	for _, v := range volumes.Items {
		require.False(t, strings.HasPrefix(v.Name, "flexlvm-ds-"), "the stranger could bind it")
	}
}
