package controlplane

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

// EachVolume calls do for every PersistentVolume, read from the API server instead of a cache.
func EachVolume(ctx context.Context, client kubernetes.Interface, do func(*corev1.PersistentVolume)) error {
	list := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.ResourceVersion = ""
		return client.CoreV1().PersistentVolumes().List(ctx, o)
	})
	return list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		do(obj.(*corev1.PersistentVolume))
		return nil
	})
}
