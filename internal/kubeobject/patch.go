package kubeobject

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
