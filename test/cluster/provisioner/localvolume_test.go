//go:build cluster

package provisioner_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	v1 "github.com/flexlvm/flexlvm/api/v1"
)

// testLocalVolumes: the API server refuses a LocalVolume whose PersistentVolume it would refuse, or
// whose claim cannot exist.
func (b *bed) testLocalVolumes(t *testing.T) {
	client, err := dynamic.NewForConfig(b.config)
	require.NoError(t, err)
	volumes := client.Resource(v1.GroupVersion.WithResource("localvolumes")).Namespace("default")
	for name, c := range map[string]struct {
		field string
		value any
		says  string // empty: it is accepted
	}{
		"as it is":                {"nodeName", "node-1", ""},
		"a claim of another name": {"claimName", "data.of-shop-0", ""},
		"two modes":               {"accessModes", []any{"ReadWriteOnce", "ReadOnlyMany"}, ""},
		"one pod alone":           {"accessModes", []any{"ReadWriteOncePod"}, ""},
		"one pod, and others":     {"accessModes", []any{"ReadWriteOnce", "ReadWriteOncePod"}, "ReadWriteOncePod excludes all other accessModes"},
		"pods of several nodes":   {"accessModes", []any{"ReadWriteMany"}, "a local volume is on one node"},
		"a mode that is none":     {"accessModes", []any{"ReadWriteTwice"}, "accessModes may hold"},
		"capitals":                {"claimName", "Data", "claimName must be a valid name of a claim"},
		"an underscore":           {"claimName", "my_data", "claimName must be a valid name of a claim"},
		"a hyphen first":          {"claimName", "-data", "claimName must be a valid name of a claim"},
		"an empty part":           {"claimName", "data..old", "claimName must be a valid name of a claim"},
		"a namespace":             {"claimName", "bank/data", "claimName must be a valid name of a claim"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := map[string]any{"nodeName": "node-1", "storageClassName": "flexlvm", "size": "1Gi"}
			spec[c.field] = c.value
			_, err := volumes.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1.GroupVersion.String(), "kind": "LocalVolume", "metadata": map[string]any{"name": "declared"}, "spec": spec,
			}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}
