package growth

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
)

const storage = corev1.ResourceStorage

// The states of a claim's growth, as Kubernetes' constants.
const (
	refused  = corev1.PersistentVolumeClaimControllerResizeInfeasible
	pending  = corev1.PersistentVolumeClaimNodeResizePending
	underway = corev1.PersistentVolumeClaimNodeResizeInProgress
	failed   = corev1.PersistentVolumeClaimNodeResizeInfeasible
)

// resizeConditions are the conditions that kube-controller-manager and kubelet overwrite, and remove
// once a volume has grown.
var resizeConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

func asked(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[storage]
}
func has(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.Capacity[storage]
}
func capacity(object *corev1.PersistentVolume) resource.Quantity {
	return object.Spec.Capacity[storage]
}
func state(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[storage]
}

func condition(claim *corev1.PersistentVolumeClaim, of corev1.PersistentVolumeClaimConditionType) *corev1.PersistentVolumeClaimCondition {
	for i := range claim.Status.Conditions {
		if c := &claim.Status.Conditions[i]; c.Type == of && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// mayBeGrowing reports whether kubelet has asked the node to grow the volume, as far as the claim shows.
func mayBeGrowing(claim *corev1.PersistentVolumeClaim) bool {
	return state(claim) == underway || condition(claim, corev1.PersistentVolumeClaimNodeResizeError) != nil
}

// askedAt returns since when a claim asks to grow, as far as its conditions show.
func askedAt(claim *corev1.PersistentVolumeClaim, otherwise time.Time) time.Time {
	for _, of := range []corev1.PersistentVolumeClaimConditionType{corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimResizing} {
		if c := condition(claim, of); c != nil && !c.LastTransitionTime.IsZero() && c.LastTransitionTime.Time.Before(otherwise) {
			return c.LastTransitionTime.Time
		}
	}
	return otherwise
}

// whenGrown describes when kubelet grows a volume. It does not for pods that use the claim as readOnly.
const whenGrown = "while a pod with write access uses it, or when the next such pod starts"

// A status is the part of a claim's status that this package writes.
type status struct {
	allocated  *resource.Quantity // nil: leave it out
	state      corev1.ClaimResourceStatus
	conditions []corev1.PersistentVolumeClaimCondition
}

// statusOf returns the current status of a claim.
func statusOf(claim *corev1.PersistentVolumeClaim) status {
	out := status{state: state(claim), conditions: claim.Status.Conditions}
	if q, there := claim.Status.AllocatedResources[storage]; there {
		out.allocated = &q
	}
	return out
}

// equal reports whether both statuses mean the same to Kubernetes; the origin of a condition does not
// matter.
func (s status) equal(o status) bool {
	if s.state != o.state || (s.allocated == nil) != (o.allocated == nil) || s.allocated != nil && s.allocated.Cmp(*o.allocated) != 0 {
		return false
	}
	return equality.Semantic.DeepEqual(s.conditions, o.conditions) || len(s.conditions) == 0 && len(o.conditions) == 0
}

// others returns the conditions of a claim that do not concern its growth.
func others(claim *corev1.PersistentVolumeClaim) []corev1.PersistentVolumeClaimCondition {
	return slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c corev1.PersistentVolumeClaimCondition) bool {
		return slices.Contains(resizeConditions, c.Type)
	})
}

// blocked returns the status of a claim that cannot grow now. With it, Kubernetes does nothing on the
// node, starts pods with the volume as it is, and retries with the current request instead of the first
// one. The size that Kubernetes counts as requested (allocatedResources, also for quotas) falls when
// the request is lowered.
func blocked(claim *corev1.PersistentVolumeClaim, why corev1.PersistentVolumeClaimCondition) status {
	out := statusOf(claim)
	if ask := asked(claim); out.allocated != nil && out.allocated.Cmp(ask) > 0 {
		out.allocated = &ask
	}
	out.state = refused
	out.conditions = append(others(claim), why)
	return out
}

// unmarked returns the status that is written before the capacity is raised: it must not contain an
// earlier request, or Kubernetes would continue with that.
func unmarked(claim *corev1.PersistentVolumeClaim, to resource.Quantity) status {
	return status{allocated: &to, conditions: others(claim)}
}

// forNode returns the status of a claim whose capacity was raised, which makes kubelet grow the volume.
// further, unless nil, is the condition of a further growth that waits.
func forNode(claim *corev1.PersistentVolumeClaim, to resource.Quantity, now time.Time, further *corev1.PersistentVolumeClaimCondition) status {
	out := status{allocated: &to, state: pending, conditions: others(claim)}
	if maximum := maxAllocated(claim); to.Cmp(maximum) > 0 {
		out.allocated = &maximum
	}
	if now := statusOf(claim); now.state == pending || now.state == underway {
		out.state = now.state
		if further == nil && now.allocated != nil && now.allocated.Cmp(*out.allocated) == 0 {
			return now // kubelet is already growing the volume
		}
	}
	wait := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimFileSystemResizePending, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now),
		Message: "The room is reserved. The node grows the volume " + whenGrown + ".",
	}
	if c := condition(claim, wait.Type); c != nil {
		wait = *c
	}
	out.conditions = append(out.conditions, wait)
	if c := condition(claim, corev1.PersistentVolumeClaimNodeResizeError); c != nil {
		out.conditions = append(out.conditions, *c)
	}
	if further != nil {
		out.conditions = append(out.conditions, *further)
	}
	return out
}

// maxAllocated returns the largest allocatedResources that flexlvm's admission policy permits.
func maxAllocated(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	out := asked(claim)
	if old, there := claim.Status.AllocatedResources[storage]; there && old.Cmp(out) > 0 {
		return old
	}
	return out
}

// resizeCondition returns the condition that reports why a claim does not grow.
func resizeCondition(claim *corev1.PersistentVolumeClaim, answer ledger.Answer, since time.Time) corev1.PersistentVolumeClaimCondition {
	ask, own := asked(claim), has(claim)
	out := corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimControllerResizeError, Status: corev1.ConditionTrue,
		LastTransitionTime: metav1.NewTime(since.Truncate(time.Second)), Reason: string(answer.Outcome),
	}
	switch answer.Outcome {
	case ledger.Refused:
		out.Message = fmt.Sprintf("cannot grow from %s to %s: %s; ask for less, which may be anything above %s", own.String(), ask.String(), answer.Why, own.String())
	case ledger.Granted:
		out.Message = fmt.Sprintf("grows from %s to %s: %s; the node does it %s", own.String(), ask.String(), answer.Why, whenGrown)
	case ledger.MakingRoom:
		out.Message = fmt.Sprintf("grows from %s to %s as soon as its room is free: %s", own.String(), ask.String(), answer.Why)
	default:
		out.Message = fmt.Sprintf("waits to grow from %s to %s: %s; it grows as soon as there is room, and may ask for less meanwhile", own.String(), ask.String(), answer.Why)
	}
	return out
}
