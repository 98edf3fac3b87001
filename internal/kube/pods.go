package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// notEnded selects the pods that have not ended, as in kubeobject.PodEnded.
const notEnded = "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)

// Pods calls each with the pods of a node that have not ended, as of some moment after the call. A pod
// may be large, so here and below each should keep only the fields that it needs, not the pod.
func (c *Client) Pods(ctx context.Context, node string, each func(*corev1.Pod)) error {
	return c.eachPod(ctx, query{what: "list the pods of node " + node, ListOptions: metav1.ListOptions{FieldSelector: onNode(node) + "," + notEnded}}, each)
}

// UnscheduledPods calls each with the pods that have no node yet, as of some moment after the call: of one
// namespace, or of all if namespace is empty.
func (c *Client) UnscheduledPods(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
	what := "list the pods of no node"
	if namespace != "" {
		what += " in namespace " + namespace
	}
	return c.eachPod(ctx, query{what: what, namespace: namespace, ListOptions: metav1.ListOptions{FieldSelector: onNode("")}}, each)
}

// PodsOfNamespace calls each with the pods of a namespace, as of some moment after the call.
func (c *Client) PodsOfNamespace(ctx context.Context, namespace string, each func(*corev1.Pod)) error {
	return c.eachPod(ctx, query{what: "list the pods of namespace " + namespace, namespace: namespace}, each)
}

func (c *Client) eachPod(ctx context.Context, q query, each func(*corev1.Pod)) error {
	q.resource = "pods"
	return inPages(ctx, c, q, func(page *corev1.PodList) {
		for i := range page.Items {
			each(&page.Items[i])
		}
	})
}
