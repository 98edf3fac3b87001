package eviction_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// crowd is a node with a full pool of n volumes of 10 GiB, a fifth of them unreferenced, and 100 promises.
func crowd(n int, promised volume.Bytes) *evictiontest.Scene {
	s := evictiontest.New()
	s.Pool("crowd", 0)
	for i := range n - 1 {
		name := fmt.Sprintf("pvc-0d9ee5ba-5b9b-4c8e-8d7e-%012x", i)
		state := volume.Ready
		if i%5 == 0 {
			state = unreferenced
		}
		// The order of the times is unrelated to that of the names.
		s.Volume(name, state, 10, evictiontest.InGroup("crowd"), evictiontest.LastUsed(float64(i*7919%n)/60))
		if state == volume.Ready {
			s.PersistentVolume(name, 10, func(c *persistentvolume.Volume) { c.Group = "crowd" })
		}
	}
	for i := range 100 {
		s.PersistentVolume(fmt.Sprintf("promised-%d", i), 0, func(c *persistentvolume.Volume) { c.Group, c.Charged = "crowd", promised })
	}
	s.Policy.HighPercent = 100
	p := s.PoolNamed("crowd")
	p.Size, p.Free = -p.Free, 0
	return s
}

func report(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(time.Millisecond), "ms/op")
}

// BenchmarkPlan10000 is one plan for a node with 10,000 volumes; the goal is 10 ms.
func BenchmarkPlan10000(b *testing.B) {
	s := crowd(10_000, 20*volume.GiB)
	require.Len(b, s.Plan().Evictions, 200)
	b.ReportAllocs()
	for b.Loop() {
		s.Plan()
	}
	report(b)
}

// BenchmarkPlan10000Worst evicts all evictable volumes.
func BenchmarkPlan10000Worst(b *testing.B) {
	s := crowd(10_000, 200*volume.GiB)
	require.Len(b, s.Plan().Evictions, 2000)
	for b.Loop() {
		s.Plan()
	}
	report(b)
}

// BenchmarkPlan10000Idle is the plan of most rounds, which evicts nothing.
func BenchmarkPlan10000Idle(b *testing.B) {
	s := crowd(10_000, 20*volume.GiB)
	p := s.PoolNamed("crowd")
	p.Size, p.Free = p.Size+40*volume.TiB, 40*volume.TiB
	require.Empty(b, s.Plan().Evictions)
	for b.Loop() {
		s.Plan()
	}
	report(b)
}

// BenchmarkJudge10000 judges 10,000 PersistentVolumes, more than a thousand of which were given up.
func BenchmarkJudge10000(b *testing.B) {
	s := crowd(10_000, 20*volume.GiB)
	for i := range s.View.PersistentVolumes {
		if i%8 == 0 {
			evictiontest.Deleting(&s.View.PersistentVolumes[i])
			evictiontest.Phase("Released")(&s.View.PersistentVolumes[i])
		}
	}
	require.Greater(b, len(eviction.Judge(s.View)), 1000)
	for b.Loop() {
		eviction.Judge(s.View)
	}
	report(b)
}
