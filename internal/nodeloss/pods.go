package nodeloss

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// listedPods holds the pods that use claims, by namespace, for the namespaces that were listed in this round.
type listedPods map[string]claimUsers

// claimUsers holds the pods that use each claim, by the claim's namespace and name. Only the fields that identify
// a pod are kept, because a namespace may have thousands of large pods.
type claimUsers map[string][]*corev1.Pod

// announceToPods sends the event on the pods that use the claim: pods that wait for it, or that are still assumed
// to run on the lost node. It is best effort.
func (l *Controller) announceToPods(ctx context.Context, v verdict, pods listedPods) {
	claim := v.volume.claim
	users, listed := pods[claim.Namespace]
	if !listed {
		var err error
		if users, err = l.claimUsers(ctx, claim.Namespace); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot list the pods that use a released claim, so they get no event", "claim", klog.KObj(claim))
			return
		}
		pods[claim.Namespace] = users
	}
	for _, pod := range users[claim.Namespace+"/"+claim.Name] {
		l.Events.Event(pod, corev1.EventTypeWarning, v.reason, fmt.Sprintf("claim %s: %s", claim.Name, v.why))
	}
}

// claimUsers lists the pods of a namespace that use claims.
func (l *Controller) claimUsers(ctx context.Context, namespace string) (claimUsers, error) {
	out := claimUsers{}
	err := l.EachPod(ctx, namespace, func(pod *corev1.Pod) {
		stripped := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}}
		for _, claim := range kubeobject.ClaimsOf(pod) {
			if users := out[claim]; len(users) == 0 || users[len(users)-1] != stripped { // a pod that names a claim twice is added once
				out[claim] = append(users, stripped)
			}
		}
	})
	return out, err
}
