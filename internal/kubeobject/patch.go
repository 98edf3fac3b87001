package kubeobject

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WithFinalizer returns an object's finalizers and this one, once.
func WithFinalizer(o metav1.Object, finalizer string) []string {
	return append(WithoutFinalizer(o, finalizer), finalizer)
}

// WithoutFinalizer returns an object's other finalizers, in a slice of their own.
func WithoutFinalizer(o metav1.Object, finalizer string) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer })
}

// FinalizersPatch returns the merge patch that writes these finalizers, if the object is still
// exactly what was seen.
func FinalizersPatch(seen metav1.Object, finalizers []string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": seen.GetUID(), "resourceVersion": seen.GetResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		panic(err) // it holds strings only
	}
	return patch
}
