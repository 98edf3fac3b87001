package kubeobject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodEnded reports whether all containers of a pod have ended. A pod that is being deleted may still
// run.
func PodEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PodNotScheduledFor reports whether the scheduler has found no node for a pod, for one of these
// reasons, such as corev1.PodReasonUnschedulable.
func PodNotScheduledFor(pod *corev1.Pod, reasons ...string) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && slices.Contains(reasons, c.Reason)
	})
}

// ClaimName returns the name of the claim behind a pod's volume, in the pod's namespace, or "" if the
// volume has no claim.
func ClaimName(pod *corev1.Pod, v corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name // as Kubernetes names such a claim
	}
	return ""
}

// ClaimsOf returns the claims that a pod uses, as namespace/name.
func ClaimsOf(pod *corev1.Pod) []string {
	var out []string
	for _, v := range pod.Spec.Volumes {
		if name := ClaimName(pod, v); name != "" {
			out = append(out, pod.Namespace+"/"+name)
		}
	}
	return out
}
