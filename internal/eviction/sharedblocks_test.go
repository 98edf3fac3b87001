package eviction_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// holds sets how many GiB a thin volume holds.
func holds(n int) func(*inventory.Volume) {
	return func(v *inventory.Volume) { v.Allocated = volume.Bytes(n) * volume.GiB }
}

// shares makes volumes share n GiB, which are counted in both and in use once.
func (s thinScene) shares(n int) { s.PoolNamed(thinPool).Free += volume.Bytes(n) * volume.GiB }

// claimed adds a claim whose volume holds all that it is promised.
func (s thinScene) claimed(name string, n int) {
	s.thinClaim(name, n)
	s.thin(name, volume.Ready, n, holds(n))
}

// A claim still needs room to overwrite what it shares with a copy.
func TestThinPromisesOfWhatIsShared(t *testing.T) {
	for name, tt := range map[string]struct {
		scene    func(thinScene)
		promised volume.Bytes
		want     []string
	}{
		"a clone, and a new claim": {func(s thinScene) {
			s.claimed("source", 30)
			s.claimed("clone", 30)
			s.shares(30)
			s.thinClaim("new", 30)
			s.thin("old", unreferenced, 40, holds(40))
		}, 60 * volume.GiB, []string{"Promised old"}},
		"a clone alone": {func(s thinScene) {
			s.claimed("source", 40)
			s.claimed("clone", 40)
			s.shares(40)
			s.thin("old", unreferenced, 30, holds(30))
		}, 40 * volume.GiB, []string{"Promised old"}},
		"snapshots": {func(s thinScene) {
			s.claimed("source", 10)
			for i := range 5 {
				name := fmt.Sprintf("snapshot-%d", i)
				s.thinClaim(name, 12, func(c *persistentvolume.Volume) { c.Kind, c.Taken = volume.Snapshot, true })
				s.thin(name, volume.Ready, 12, holds(10), func(v *inventory.Volume) { v.Kind = volume.Snapshot })
			}
			s.shares(50)
			s.thin("old", unreferenced, 60, holds(60))
		}, 10 * volume.GiB, []string{}},
		"nothing is shared": {func(s thinScene) {
			s.claimed("a", 30)
			s.claimed("b", 25)
			s.thin("old", unreferenced, 40, holds(40))
		}, 0, []string{}},
		"LVM has rounded": {func(s thinScene) {
			s.claimed("a", 60)
			s.PoolNamed(thinPool).Free += 20 * volume.MiB
			s.thin("old", unreferenced, 40, holds(40))
		}, 0, []string{}},
		"room for all of it": {func(s thinScene) {
			s.claimed("source", 30)
			s.claimed("clone", 30)
			s.shares(30)
			s.thin("old", unreferenced, 40, holds(40))
		}, 30 * volume.GiB, []string{}},
		"more is held than a ratio promises": {func(s thinScene) {
			for _, name := range []string{"source", "clone"} {
				s.thinClaim(name, 20)
				s.thin(name, volume.Ready, 40, holds(40))
			}
			s.shares(40)
			s.thin("old", unreferenced, 60, holds(60))
		}, 0, []string{}},
		"with one that was given up": {func(s thinScene) {
			s.claimed("clone", 60)
			s.thin("source", unreferenced, 60, holds(60))
			s.shares(60)
		}, 60 * volume.GiB, []string{"Promised source"}},
		"by what was given up alone": {func(s thinScene) {
			s.thin("a", unreferenced, 60, holds(60))
			s.thin("b", unreferenced, 60, holds(60))
			s.shares(60)
		}, 0, []string{}},
		"beside others": {func(s thinScene) {
			s.claimed("source", 30)
			s.claimed("clone", 30)
			s.PoolNamed(thinPool).Free += 30*volume.GiB - 20*volume.GiB
			s.PoolNamed(thinPool).Thin.Others = 20 * volume.GiB
			s.thin("old", unreferenced, 30, holds(30))
		}, 30 * volume.GiB, []string{"Promised old"}},
		"LVM does not tell what others hold": {func(s thinScene) {
			s.claimed("a", 50)
			s.thin("idle", unreferenced, 90, holds(90), func(v *inventory.Volume) { v.Active = false })
			s.shares(50)
		}, 0, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newThinScene()
			s.Policy.HighPercent = 100
			tt.scene(s)
			require.Equal(t, tt.promised.String(), s.result(t).Promised.String())
			require.Equal(t, tt.want, evictiontest.Evicted(s.Plan()))
			require.Zero(t, s.result(t).Shortfall)
		})
	}
}

func TestThinMessagesOfWhatIsShared(t *testing.T) {
	s := newThinScene()
	s.Policy.HighPercent = 100
	s.claimed("source", 40)
	s.claimed("clone", 40)
	s.shares(40)
	s.thin("old", unreferenced, 40, holds(40))
	require.Contains(t, s.Plan().Evictions[0].Message, "volumes on this node need 40 GiB to overwrite what copies and snapshots share, and pool flexlvm/thinpool has 20 GiB free")
	require.True(t, s.result(t).Pressure)
	s.thinClaim("new", 40)
	require.Equal(t, 40*volume.GiB, s.result(t).Shared)
	require.Contains(t, s.result(t).ShortfallMessage, "1 volume promised on this node (new for claim db/data-new) needs 80 GiB, with 40 GiB to overwrite what copies and snapshots share")
}

// Replicas are evicted for what claims are promised, but not for what other replicas share.
func TestThinReplicasGoForWhatIsShared(t *testing.T) {
	s := newThinScene()
	s.Policy.HighPercent = 100
	s.Replica("replica", 50, func(v *inventory.Volume, c *persistentvolume.Volume) {
		v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "thinpool"}
		c.Shape = v.Shape
	})
	s.PoolNamed("flexlvm").Free += 50 * volume.GiB
	s.PoolNamed(thinPool).Free -= 50 * volume.GiB
	s.claimed("source", 30)
	require.Empty(t, s.Plan().ReplicaEvictions)
	s.claimed("clone", 30)
	s.shares(30)
	require.Len(t, s.Plan().ReplicaEvictions, 1)
}

// blocks are the blocks of a thin pool's volumes, of a GiB each.
type blocks struct {
	r       *rand.Rand
	last    int
	held    map[string]map[int]bool
	charged map[string]int // of the volumes that have a claim
	young   map[string]bool
	others  int // held by volumes that are not flexlvm's
}

const poolSize = 100

func (b *blocks) used(names ...string) int {
	union := map[int]bool{}
	for _, name := range names {
		maps.Copy(union, b.held[name])
	}
	return len(union) + b.others
}

func (b *blocks) all() []string     { return slices.Sorted(maps.Keys(b.held)) }
func (b *blocks) claims() []string  { return slices.Sorted(maps.Keys(b.charged)) }
func (b *blocks) promised() (n int) { return sum(slices.Collect(maps.Values(b.charged))) }

func sum(of []int) (n int) {
	for _, one := range of {
		n += one
	}
	return n
}

func (b *blocks) scene() thinScene {
	s := newThinScene()
	s.Policy.HighPercent = 100
	for _, name := range b.all() {
		charge, has := b.charged[name]
		state := volume.Ready
		if !has {
			state = unreferenced
		}
		s.thin(name, state, max(charge, len(b.held[name])), holds(len(b.held[name])), func(v *inventory.Volume) {
			if b.young[name] {
				v.Released = evictiontest.Now.Add(-time.Second)
			}
		})
		if has {
			s.thinClaim(name, charge)
		}
	}
	p := s.PoolNamed(thinPool)
	p.Free, p.Thin.Others = volume.Bytes(poolSize-b.used(b.all()...))*volume.GiB, volume.Bytes(b.others)*volume.GiB
	return s
}

// fits reports whether charge may be promised as well.
func (b *blocks) fits(t *testing.T, charge int) bool {
	return b.scene().result(t).Allocatable >= volume.Bytes(b.promised()+charge)*volume.GiB
}

// step does a random action of a user.
func (b *blocks) step(t *testing.T, name string) {
	claims := b.claims()
	if kind := b.r.IntN(6); kind == 0 || len(claims) == 0 {
		if charge := 1 + b.r.IntN(30); b.fits(t, charge) {
			b.held[name], b.charged[name] = map[int]bool{}, charge
		}
		return
	} else if one := pick(b.r, claims...); kind == 1 {
		if b.fits(t, b.charged[one]) {
			b.held[name], b.charged[name] = maps.Clone(b.held[one]), b.charged[one]
		}
	} else if kind == 2 {
		delete(b.charged, one)
		b.young[one] = b.r.IntN(4) == 0
	} else {
		b.write(one, b.r.IntN(b.charged[one]+1))
	}
}

// write writes n blocks of a volume, some of them over existing ones.
func (b *blocks) write(name string, n int) {
	for range n {
		if b.used(b.all()...) >= poolSize {
			return // it is full until the node daemon makes room
		}
		held := slices.Sorted(maps.Keys(b.held[name]))
		if len(held) > 0 && (len(held) >= b.charged[name] || b.r.IntN(2) == 0) {
			delete(b.held[name], pick(b.r, held...))
		}
		b.last++
		b.held[name][b.last] = true
	}
}

// settle carries out plans until one evicts nothing.
func (b *blocks) settle(t *testing.T, seed uint64) (evicted int) {
	for range len(b.held) + 1 {
		plan := b.scene().Plan()
		if len(plan.Evictions) == 0 {
			return evicted
		}
		for _, e := range plan.Evictions {
			require.Equal(t, eviction.ReasonPromised, e.Reason, "seed %d", seed)
			require.NotContains(t, b.charged, string(e.Volume.Name), "seed %d", seed)
			delete(b.held, string(e.Volume.Name))
			evicted++
		}
	}
	require.Fail(t, "plans never end", "seed %d", seed)
	return 0
}

// TestThinPromisesHold checks that after plans have settled, all claims together can write all that they are
// promised, whatever they share, without filling the pool.
func TestThinPromisesHold(t *testing.T) {
	evicted := 0
	for seed := range uint64(300) {
		b := &blocks{r: rand.New(rand.NewPCG(seed, 5)), held: map[string]map[int]bool{}, charged: map[string]int{}, young: map[string]bool{}}
		b.others = b.r.IntN(2) * b.r.IntN(30)
		for i := range 40 {
			b.step(t, fmt.Sprintf("v%02d", i))
		}
		evicted += b.settle(t, seed)
		unclaimed := slices.DeleteFunc(b.all(), func(name string) bool { _, has := b.charged[name]; return has })
		require.LessOrEqual(t, b.promised()+b.used(unclaimed...), poolSize, "seed %d", seed)
	}
	require.Greater(t, evicted, 100, "the pools are too tame")
}
