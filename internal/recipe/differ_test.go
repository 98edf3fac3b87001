package recipe_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

// Sizes are compared by value, however the API server formats them.
func TestStartAgainWithADecimalSize(t *testing.T) {
	for _, size := range []string{"1G", "1500M", "1e9", "0.5Gi", "1000Mi"} {
		client := fake.NewClientset()
		withUIDs(client)
		client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
			claim := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
			content, err := json.Marshal(claim)
			require.NoError(t, err)
			*claim = corev1.PersistentVolumeClaim{}
			require.NoError(t, json.Unmarshal(content, claim))
			return false, nil, nil
		})
		s := settings()
		s.Workers, s.SizePerWorker = 1, resource.MustParse(size)
		for range 2 {
			_, err := recipe.Start(t.Context(), client, s)
			require.NoError(t, err, size)
		}
		s.SizePerWorker = resource.MustParse("2G")
		_, err := recipe.Start(t.Context(), client, s)
		require.ErrorContains(t, err, "other settings", size)
	}
}
