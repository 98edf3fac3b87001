package kubeobject

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WithFinalizer returns an object's finalizers with this one added, exactly once.
func WithFinalizer(o metav1.Object, finalizer string) []string {
	return append(WithoutFinalizer(o, finalizer), finalizer)
}

// WithoutFinalizer returns a copy of an object's finalizers without this one.
func WithoutFinalizer(o metav1.Object, finalizer string) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer })
}

// FinalizersPatch returns the merge patch that sets these finalizers, if the object still has the UID
// and resourceVersion of seen.
func FinalizersPatch(seen metav1.Object, finalizers []string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": seen.GetUID(), "resourceVersion": seen.GetResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		panic(err) // it holds strings only
	}
	return patch
}
