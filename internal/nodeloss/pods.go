package nodeloss

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

// An audience is the pods of a round that use claims, by namespace, as far as they were listed.
type audience map[string]claimUsers

// claimUsers are the pods that use a claim, by its namespace and name. Of a pod, only what identifies it is
// kept: a namespace may have thousands, and each may be large.
type claimUsers map[string][]*corev1.Pod

// announceToPods sends the event for the pods that use the claim. They wait for it, or are still assumed to run
// on the lost node. It is best effort.
func (l *Controller) announceToPods(ctx context.Context, v verdict, told audience) {
	claim := v.volume.claim
	users, listed := told[claim.Namespace]
	if !listed {
		var err error
		if users, err = l.claimUsers(ctx, claim.Namespace); err != nil {
			klog.FromContext(ctx).Error(err, "The pods that use a released claim are not told", "claim", klog.KObj(claim))
			return
		}
		told[claim.Namespace] = users
	}
	for _, pod := range users[claim.Namespace+"/"+claim.Name] {
		l.Events.Event(pod, corev1.EventTypeWarning, v.reason, fmt.Sprintf("claim %s: %s", claim.Name, v.why))
	}
}

// claimUsers lists the pods of a namespace that use claims.
func (l *Controller) claimUsers(ctx context.Context, namespace string) (claimUsers, error) {
	out := claimUsers{}
	err := l.EachPod(ctx, namespace, func(pod *corev1.Pod) {
		lean := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		}}
		for _, claim := range kubeobject.ClaimsOf(pod) {
			if users := out[claim]; len(users) == 0 || users[len(users)-1] != lean { // once, if the pod names it twice
				out[claim] = append(users, lean)
			}
		}
	})
	return out, err
}
