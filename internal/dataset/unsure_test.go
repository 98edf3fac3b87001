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

// Any error while deciding to delete means: do not delete.
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

// The cache shows what was wanted a moment ago: what was changed meanwhile counts.
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

// The cache does not show a label that was just written: no replica goes from under it.
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

// A claim of that name that is somebody else's is left alone, and told of.
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
