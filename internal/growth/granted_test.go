package growth

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// The event of a granted growth is sent even if kube-controller-manager, which has seen the capacity, writes the
// claim first.
func TestGrantIsToldWhereKubernetesIsFaster(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		done, object, err := w.patch(action)
		w.store(w.claim("data"))
		return done, object, err
	})
	w.ask("data", 10*gib)
	w.settle()
	larger := capacity(w.object("data"))
	require.Equal(t, int64(10*gib), larger.Value())
	require.Equal(t, pending, state(w.claim("data")))
	require.Len(t, w.told, 1)
	require.Contains(t, w.told[0], "Normal GrowthGranted grows from 1Gi to 10Gi")
}
