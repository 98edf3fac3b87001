package nodeagent_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// newThinRig has a thin pool with two volumes, one of which takes more than its charge.
func newThinRig(t *testing.T) (r *rig, write func(volume.Bytes)) {
	r = newRig(t)
	thin := func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume.Options[volume.OptionLayout] = "thin"
		o.Spec.FlexVolume.Options[volume.OptionThinPool] = "pool"
	}
	r.engine.pools = append(r.engine.pools, inventory.Pool{
		Name: "flexlvm/pool", UUID: "pool", Size: volume.TiB, Free: volume.TiB, Extent: 4 * volume.MiB,
		Thin: &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: true, Metadata: volume.GiB},
	})
	for name, charged := range map[string]int{"within": 500, "beyond": 1} {
		r.claimed(name, charged, thin)
	}
	write = func(more volume.Bytes) {
		r.engine.with(func() {
			for i := range r.engine.volumes {
				v := &r.engine.volumes[i]
				if v.Name != "within" && v.Name != "beyond" {
					continue
				}
				if v.Layout != volume.Thin {
					v.Shape, v.AllocatedWhenFull, v.Allocated = volume.Shape{Layout: volume.Thin, ThinPool: "pool"}, 500*volume.GiB, 50*volume.GiB
					r.engine.pools[1].Free -= v.Allocated
				}
				v.Allocated += more
				r.engine.pools[1].Free -= more
			}
		})
	}
	write(0)
	return r, write
}

// Small writes of pods to thin volumes do not change the report in each round.
func TestReportOfThinPoolsIsRounded(t *testing.T) {
	t.Parallel()
	r, write := newThinRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	writes := func() int { return r.api.requests("put nodestorages") }
	written := r.calm(writes)
	for range 10 {
		write(50 * volume.MiB)
		r.rounds(1)
	}
	require.LessOrEqual(t, writes(), written+1)
	write(20 * volume.GiB)
	r.eventually(func() bool { return writes() > written+1 }, "what was written is not reported")
}

// Neither do they change the messages of a thin pool that is full, nor announce its shortfall again.
func TestMessagesOfThinPoolsAreRounded(t *testing.T) {
	t.Parallel()
	r, write := newThinRig(t)
	write(400*volume.GiB + volume.MiB)
	r.engine.pools[0].Free = 90 * volume.GiB
	r.api.put(object("new", 200, func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume.Options[volume.OptionLayout], o.Spec.FlexVolume.Options[volume.OptionThinPool] = "thin", "pool"
	}))
	r.start()
	r.eventually(func() bool { return len(r.api.told("Shortfall")) == 1 }, "no shortfall")
	require.Contains(t, r.condition("DiskPressure").Message, "87% full (902 GiB of 1 TiB)")
	writes := func() int { return r.api.requests("put nodestorages") }
	written := r.calm(writes)
	for range 10 {
		write(50 * volume.MiB)
		r.rounds(1)
	}
	require.LessOrEqual(t, writes(), written+1)
	require.Len(t, r.api.told("Shortfall"), 1)
	write(10 * volume.GiB)
	r.eventually(func() bool { return len(r.api.told("Shortfall")) == 2 }, "what was written is not announced")
}

// The report never shows more free room than there is, and follows when room is freed.
func TestReportOfThinPoolsIsSafe(t *testing.T) {
	t.Parallel()
	r, write := newThinRig(t)
	r.start()
	for _, more := range []volume.Bytes{0, 30 * volume.MiB, 20 * volume.GiB, -volume.MiB, -19 * volume.GiB} {
		write(more)
		r.rounds(2)
		pool, free := flexlvmv1.Pool{}, volume.Bytes(0)
		r.engine.with(func() { free = r.engine.pools[1].Free })
		r.eventually(func() bool {
			if all := r.status().Pools; len(all) == 2 {
				pool = all[1]
			}
			off := free - volume.Bytes(pool.Free.Value())
			return off >= 0 && off < 3*volume.GiB
		}, "%s are free, and reported are %s", free, pool.Free.String())
		held := volume.TiB - free // by two volumes, half by each
		require.GreaterOrEqual(t, pool.Promised.Value(), int64(500*volume.GiB-held/2))
		require.LessOrEqual(t, pool.Allocatable.Value(), int64(volume.TiB-(held/2-volume.GiB)))
	}
}
