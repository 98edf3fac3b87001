package growth

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// manager is one attempt of kube-controller-manager 1.37 to expand a claim (pkg/volume/util/operationexecutor,
// expandAndRecoverFunction).
func (w *world) manager(name string) {
	claim, object := w.claim(name), w.object(name)
	ask, own, larger := asked(claim), has(claim), capacity(object)
	_, grew := object.Annotations[pv.AnnotationPreResizeCapacity]
	if ask.Cmp(own) <= 0 {
		if grew && own.Cmp(larger) >= 0 {
			delete(object.Annotations, pv.AnnotationPreResizeCapacity)
			w.store(object)
		}
		return
	}
	to, before := ask, state(claim)
	allocated, there := claim.Status.AllocatedResources[storage]
	if larger.Cmp(ask) < 0 {
		if there && slices.Contains([]corev1.ClaimResourceStatus{corev1.PersistentVolumeClaimControllerResizeInProgress, pending, underway}, before) {
			to = allocated
		}
	} else {
		if before == pending || before == underway {
			return
		}
		if there && (before == corev1.PersistentVolumeClaimControllerResizeInProgress || before == "") {
			to = allocated
		}
	}
	claim.Status.Conditions = append(others(claim), corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)})
	claim.Status.AllocatedResources = corev1.ResourceList{storage: to}
	claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{storage: corev1.PersistentVolumeClaimControllerResizeInProgress}
	w.store(claim)
	if to.Cmp(larger) > 0 {
		return // the admission policy growth.flexlvm.io denies the write of the capacity
	}
	if to.Cmp(larger) < 0 {
		object.Spec.Capacity = corev1.ResourceList{storage: to}
		w.store(object)
	}
	claim.Status.AllocatedResourceStatuses[storage] = pending
	w.store(claim)
}

// kubelet handles a claim that a pod uses, and reports whether the pod can start (pkg/volume/util/operationexecutor,
// node_expander.go).
func (w *world) kubelet(name string) bool {
	claim, object := w.claim(name), w.object(name)
	own, to := has(claim), capacity(object)
	now := state(claim)
	if to.Cmp(own) <= 0 || now != pending && now != underway {
		return true
	}
	v := w.made[object.Name]
	size := volume.Bytes(to.Value())
	device := volume.XFSDeviceSize(size, 0)
	if more := w.spec.Shape().Takes(device, volume.DefaultExtent) - w.spec.Shape().Takes(v.AllocatedWhenFull, volume.DefaultExtent); w.spec.Layout != volume.Thin && more > w.free() || device-v.AllocatedWhenFull > w.free() {
		claim.Status.AllocatedResourceStatuses[storage] = underway
		claim.Status.Conditions = append(slices.DeleteFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimNodeResizeError
		}), corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now), Message: "no room"})
		w.store(claim)
		return false
	}
	if w.spec.Layout != volume.Thin {
		v.Allocated = w.spec.Shape().Takes(device, volume.DefaultExtent)
	}
	v.Size, v.AllocatedWhenFull = size, device
	claim.Status.Capacity = corev1.ResourceList{storage: to}
	claim.Status.AllocatedResourceStatuses = nil
	claim.Status.Conditions = others(claim)
	w.store(claim)
	return true
}

// words returns the condition of a claim that reports why it does not grow.
func (w *world) words(name string) string {
	if c := condition(w.claim(name), corev1.PersistentVolumeClaimControllerResizeError); c != nil {
		return fmt.Sprintf("%s: %s", c.Reason, c.Message)
	}
	return ""
}

// requireSize requires that a claim has the size in the API and on the node, and no open growth.
func (w *world) requireSize(name string, size volume.Bytes) {
	w.t.Helper()
	claim, object := w.claim(name), w.object(name)
	own, larger := has(claim), capacity(object)
	require.Equal(w.t, int64(size), own.Value(), "claim")
	require.Equal(w.t, int64(size), larger.Value(), "PersistentVolume")
	require.Equal(w.t, size, w.made[object.Name].Size, "volume")
	require.NotContains(w.t, object.Annotations, pv.AnnotationGrowingTo)
	require.Empty(w.t, w.words(name))
	require.Empty(w.t, state(claim))
	require.Len(w.t, claim.Status.Conditions, 1, "that of others")
}
