package nodeagent

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// series returns a metric's values by pool; of flexlvm_volumes, those in state ready.
func series(t *testing.T, from prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == name && (labels["state"] == "" || labels["state"] == "ready") {
				out[labels["pool"]] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

func foundPools(pools ...inventory.Pool) (f observation) {
	for _, p := range pools {
		f.result.Pools = append(f.result.Pools, eviction.PoolResult{Pool: p, ByState: map[volume.State]int{volume.Ready: 3}})
	}
	return f
}

// Prometheus may scrape at any moment, even while a round updates the metrics.
func TestMetricsAreThereAtAnyMoment(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	f := foundPools(inventory.Pool{Name: "one", Size: volume.GiB}, inventory.Pool{Name: "two", Size: volume.GiB})
	m.round(f, nil, nil, time.Second)
	end := make(chan struct{})
	var rounds sync.WaitGroup
	rounds.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				m.round(f, nil, nil, time.Second)
			}
		}
	})
	defer rounds.Wait()
	defer close(end)
	for range 300 {
		for name, want := range map[string]float64{"flexlvm_pool_size_bytes": float64(volume.GiB), "flexlvm_volumes": 3} {
			require.Equal(t, map[string]float64{"one": want, "two": want}, series(t, registry, name), name)
		}
	}
}

// A deleted pool has no metrics, and a value that is unknown has none while it is.
func TestMetricsOfPoolsThatGo(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	thin := func(known bool) inventory.Pool {
		return inventory.Pool{Name: "one/thin", Size: volume.GiB, Thin: &inventory.ThinPool{Known: known, Metadata: 100}}
	}
	one := inventory.Pool{Name: "one", Size: volume.GiB}
	const size, metadata = "flexlvm_pool_size_bytes", "flexlvm_pool_thin_metadata_size_bytes"
	m.round(foundPools(one, thin(true)), nil, nil, time.Second)
	require.Len(t, series(t, registry, size), 2)
	require.Equal(t, map[string]float64{"one/thin": 100}, series(t, registry, metadata))
	m.round(foundPools(one, thin(false)), nil, nil, time.Second)
	require.Len(t, series(t, registry, size), 2)
	require.Empty(t, series(t, registry, metadata))
	m.round(foundPools(one), nil, nil, time.Second)
	for _, name := range []string{size, "flexlvm_volumes"} {
		left := series(t, registry, name)
		require.Len(t, left, 1, name)
		require.Contains(t, left, "one", name)
	}
}

// The metric reports how full the fullest snapshot that may overflow is, and ignores snapshots that cannot.
func TestMetricsOfSnapshotsThatFill(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	f := foundPools(inventory.Pool{Name: "one", Size: volume.GiB}, inventory.Pool{Name: "two", Size: volume.GiB})
	f.view.Cluster = "cluster"
	snapshot := func(g volume.Group, name volume.Name, reserve volume.Reserve, percent volume.Bytes) {
		f.view.PersistentVolumes = append(f.view.PersistentVolumes, persistentvolume.Volume{
			Group: g, Volume: name, Kind: volume.Snapshot, Shape: volume.Shape{Layout: volume.Linear}, Cluster: "cluster", Taken: true, Reserve: reserve,
		})
		f.inventory.Volumes = append(f.inventory.Volumes, inventory.Volume{Group: g, Name: name, Cluster: "cluster", SnapshotOf: "source", Allocated: 100, Stored: percent})
	}
	snapshot("one", "a", 30, 20)
	snapshot("one", "b", 30, 85)
	snapshot("one", "c", 0, 99)
	const name = "flexlvm_pool_fullest_snapshot_ratio"
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 0.85, "two": 0}, series(t, registry, name))
	f.inventory.Volumes[0].Overflowed = true
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 1, "two": 0}, series(t, registry, name))
	f.view.PersistentVolumes[0].Lost = "it has overflowed"
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 1, "two": 0}, series(t, registry, name), "until it is deleted")
	f.view.PersistentVolumes = nil
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 0, "two": 0}, series(t, registry, name))
}

// The room that can still be promised is reported for pools whose content is known, and the data that may still be
// written for thin pools.
func TestMetricsOfWhatIsChargedAndUnwritten(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	thin := inventory.Pool{Name: "one/thin", UUID: "thin-1", Size: volume.GiB, Thin: &inventory.ThinPool{GroupUUID: "group-1", Known: true}}
	f := foundPools(inventory.Pool{Name: "one", UUID: "group-1", Size: volume.GiB}, thin)
	f.result.Pools[0].Allocatable, f.result.Pools[0].Charged = 900, 300
	f.result.Pools[1].Unwritten, f.result.Pools[1].Shared = 270, 1000
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 900, "one/thin": 0}, series(t, registry, "flexlvm_pool_allocatable_bytes"))
	require.Equal(t, map[string]float64{"one": 300, "one/thin": 0}, series(t, registry, "flexlvm_pool_charged_bytes"))
	require.Equal(t, map[string]float64{"one/thin": 1270}, series(t, registry, "flexlvm_pool_thin_unwritten_bytes"))

	f.result.Pools[1].Pool.Thin = &inventory.ThinPool{GroupUUID: "group-1"}
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"one": 900}, series(t, registry, "flexlvm_pool_allocatable_bytes"))
	require.Equal(t, map[string]float64{"one": 300}, series(t, registry, "flexlvm_pool_charged_bytes"))
	require.Empty(t, series(t, registry, "flexlvm_pool_thin_unwritten_bytes"))
}

func TestMetricsOfDegradedVolumes(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	f := foundPools()
	f.result.Problems = []inventory.Volume{{Problem: "degraded", Degraded: true}, {Problem: "out of date", Outdated: true}, {Problem: "its tags make no sense"}}
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"": 2}, series(t, registry, "flexlvm_degraded_volumes"))
	require.Equal(t, map[string]float64{"": 3}, series(t, registry, "flexlvm_problem_volumes"))
	f.result.Problems = nil
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"": 0}, series(t, registry, "flexlvm_degraded_volumes"))
}

// Each PersistentVolume that announceClaims announces counts once.
func TestMetricsOfWhatNeedsAttention(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	f := foundPools()
	v := func(name, trim string) persistentvolume.Volume {
		return persistentvolume.Volume{PV: name, Phase: corev1.VolumeBound, Trim: trim, OnNodeLoss: string(volume.OnNodeLossKeep)}
	}
	f.view.PersistentVolumes = []persistentvolume.Volume{v("well", ""), v("reported", "sometimes"), v("without effect", "sometimes"), v("released", "sometimes")}
	f.view.PersistentVolumes[3].Phase = corev1.VolumeReleased
	f.verdicts = []eviction.Verdict{
		{PersistentVolume: f.view.PersistentVolumes[1], Action: eviction.ActionReport},
		{PersistentVolume: f.view.PersistentVolumes[3], Action: eviction.ActionRelease},
	}
	f.unreadable = map[string]error{"unreadable": errors.New("has no handle")}
	m.round(f, nil, nil, time.Second)
	require.Equal(t, map[string]float64{"": 3}, series(t, registry, "flexlvm_attention_persistentvolumes"))
}
