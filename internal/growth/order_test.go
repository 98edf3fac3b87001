package growth

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Users, kube-controller-manager, kubelet, the daemon and kills act in any order. No more is promised than there is,
// no pod is kept from starting by a growth that was not granted, and at the end each claim has what it requests, or a
// condition says why not.
func TestAnyOrder(t *testing.T) {
	for seed := range int64(60) {
		random := rand.New(rand.NewSource(seed))
		layout := []func(*volume.Spec){func(*volume.Spec) {}, thin(0), thin(3000), func(s *volume.Spec) { s.Layout = volume.Raid1 }}[random.Intn(4)]
		w := newWorld(t, volume.Bytes(30+random.Intn(60))*gib, layout)
		names := []string{"a", "b", "c"}
		for _, name := range names {
			w.bind(name, gib)
		}
		for i := range random.Intn(4) {
			w.make(fmt.Sprintf("old-%d", i), volume.Unreferenced, volume.Bytes(1+random.Intn(3))*gib)
		}
		for range 40 {
			name := names[random.Intn(3)]
			switch random.Intn(7) {
			case 0:
				own := has(w.claim(name))
				w.ask(name, volume.Bytes(own.Value())+volume.Bytes(1+random.Intn(30))*gib)
			case 1:
				w.manager(name)
			case 2:
				w.kubelet(name)
			case 3:
				w.daemon()
			case 4:
				w.dies, w.lost = random.Intn(4), random.Intn(2) == 0
			case 5:
				w.restart()
			case 6:
				w.serve()
			}
			w.now = w.now.Add(time.Second)
		}
		w.restart()
		for range 6 {
			w.now = w.now.Add(2 * regrowAfter)
			w.settle()
			for _, name := range names {
				w.manager(name)
			}
			w.settle()
			for _, name := range names {
				require.True(t, w.kubelet(name), "seed %d: %s cannot start", seed, name)
			}
		}
		w.settle()
		for _, name := range names {
			ask, own := asked(w.claim(name)), has(w.claim(name))
			if ask.Cmp(own) > 0 {
				require.NotEmpty(t, w.words(name), "seed %d: %s", seed, name)
				require.Equal(t, refused, state(w.claim(name)))
				require.NotContains(t, w.words(name), "MakingRoom", "seed %d: it is never done", seed)
			}
		}
	}
}
