package growth

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// A claim is told that its growth is granted also where kube-controller-manager writes it first,
// once it has seen the capacity.
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
