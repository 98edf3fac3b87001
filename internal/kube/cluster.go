package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// ClusterUID returns the UID of the kube-system namespace, which identifies the cluster and is in the
// volumes' tags. core is a client of the core API group.
func ClusterUID(ctx context.Context, core rest.Interface) (string, error) {
	var namespace corev1.Namespace
	if err := core.Get().Resource("namespaces").Name(metav1.NamespaceSystem).MaxRetries(0).Do(ctx).Into(&namespace); err != nil {
		return "", fmt.Errorf("read the UID of namespace %s: %w", metav1.NamespaceSystem, err)
	}
	if namespace.UID == "" {
		return "", fmt.Errorf("read the UID of namespace %s: the API server gave none", metav1.NamespaceSystem)
	}
	return string(namespace.UID), nil
}

// AwaitClusterUID calls ClusterUID until it succeeds or ctx ends.
func AwaitClusterUID(ctx context.Context, core rest.Interface) (string, error) {
	var uid string
	err := wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		if uid, err = ClusterUID(ctx, core); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the namespace whose UID identifies the cluster; trying again", "namespace", metav1.NamespaceSystem)
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return "", fmt.Errorf("read the UID of namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return uid, nil
}
