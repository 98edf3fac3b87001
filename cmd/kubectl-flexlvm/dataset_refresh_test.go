package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func TestDatasetsAreRefreshed(t *testing.T) {
	known := runtime.NewScheme()
	require.NoError(t, flexlvmv1.AddToScheme(known))
	vm := &flexlvmv1.VolumeManager{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "images", Annotations: map[string]string{"a": "b"}}}
	c := fake.NewClientBuilder().WithScheme(known).WithObjects(vm).Build()
	seen := map[string]bool{}
	for i := range 2 {
		var out bytes.Buffer
		require.NoError(t, refreshDatasets(t.Context(), c, "team", []string{"images"}, time.Unix(0, int64(i)), &out))
		require.Equal(t, "VolumeManager team/images: refresh requested; the nodes load the new version node by node\n", out.String())
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(vm), vm))
		require.Equal(t, "b", vm.Annotations["a"])
		seen[vm.Annotations[replica.AnnotationRefresh]] = true
	}
	require.Len(t, seen, 2, "each asks anew")
	require.ErrorContains(t, refreshDatasets(t.Context(), c, "team", []string{"none"}, time.Now(), &bytes.Buffer{}), "refresh VolumeManager team/none")
}
