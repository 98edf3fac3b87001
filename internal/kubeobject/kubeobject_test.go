package kubeobject_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

func TestPodEnded(t *testing.T) {
	ended := map[corev1.PodPhase]bool{
		corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false, "": false,
		corev1.PodSucceeded: true, corev1.PodFailed: true,
	}
	for phase, want := range ended {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{}}, Status: corev1.PodStatus{Phase: phase}}
		require.Equal(t, want, kubeobject.PodEnded(pod), "phase %q, being deleted", phase)
	}
}

func TestPodNotScheduledFor(t *testing.T) {
	pod := func(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: kind, Status: status, Reason: reason}}}}
	}
	full := corev1.PodReasonUnschedulable
	require.True(t, kubeobject.PodNotScheduledFor(pod(corev1.PodScheduled, corev1.ConditionFalse, full), corev1.PodReasonSchedulingGated, full))
	require.False(t, kubeobject.PodNotScheduledFor(pod(corev1.PodScheduled, corev1.ConditionFalse, full), corev1.PodReasonSchedulingGated))
	require.False(t, kubeobject.PodNotScheduledFor(pod(corev1.PodScheduled, corev1.ConditionTrue, full), full))
	require.False(t, kubeobject.PodNotScheduledFor(pod(corev1.PodReady, corev1.ConditionFalse, full), full))
	require.False(t, kubeobject.PodNotScheduledFor(&corev1.Pod{}, full))
}

func TestClaimsOf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"}}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "orders"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
	}
	require.Equal(t, []string{"shop/orders", "shop/db-0-scratch"}, kubeobject.ClaimsOf(pod))
	require.Empty(t, kubeobject.ClaimsOf(&corev1.Pod{}))
}

func TestFinalizersPatchIsOfWhatWasSeen(t *testing.T) {
	seen := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "1234", ResourceVersion: "56"}}
	require.JSONEq(t, `{"metadata":{"uid":"1234","resourceVersion":"56","finalizers":["a/b"]}}`, string(kubeobject.FinalizersPatch(seen, []string{"a/b"})))
	require.JSONEq(t, `{"metadata":{"uid":"1234","resourceVersion":"56","finalizers":[]}}`, string(kubeobject.FinalizersPatch(seen, []string{})))
}

func TestFinalizers(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a", "ours", "b"}}}
	require.Equal(t, []string{"a", "b"}, kubeobject.WithoutFinalizer(pod, "ours"))
	require.Equal(t, []string{"a", "b", "ours"}, kubeobject.WithFinalizer(pod, "ours"), "once")
	require.Equal(t, []string{"a", "ours", "b", "new"}, kubeobject.WithFinalizer(pod, "new"))
	require.Equal(t, []string{"a", "ours", "b"}, pod.Finalizers, "the object is as it was")
	require.Equal(t, []string{"new"}, kubeobject.WithFinalizer(&corev1.Pod{}, "new"))
}

func TestIsBlock(t *testing.T) {
	block, filesystem := corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem
	require.True(t, kubeobject.IsBlock(&block))
	require.False(t, kubeobject.IsBlock(&filesystem))
	require.False(t, kubeobject.IsBlock(nil))
}
