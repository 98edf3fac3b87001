package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Two disks of 50 GiB each, on which 20 GiB in total are free and 60 GiB are evictable.
func TestLedgerOffersWhatMayBeEvictedFromEachDevice(t *testing.T) {
	quantities := func(each ...volume.Bytes) (out []resource.Quantity) {
		for _, b := range each {
			out = append(out, ledgertest.Quantity(b))
		}
		return out
	}
	report := func(reclaimable ...volume.Bytes) *flexlvmv1.NodeStorage {
		return ledgertest.Report("node-1", 80*volume.GiB, func(p *flexlvmv1.Pool) {
			p.Reclaimable = ledgertest.Quantity(60 * volume.GiB)
			p.DeviceFree, p.DeviceReclaimable = quantities(10*volume.GiB, 10*volume.GiB), quantities(reclaimable...)
		})
	}
	for name, tt := range map[string]struct {
		report         *flexlvmv1.NodeStorage
		striped, raid1 volume.Bytes
	}{
		"half on each":     {report(30*volume.GiB, 30*volume.GiB), 78 * volume.GiB, 39 * volume.GiB},
		"all on one":       {report(60*volume.GiB, 0), 19 * volume.GiB, 9 * volume.GiB},
		"more on one":      {report(40*volume.GiB, 20*volume.GiB), 58 * volume.GiB, 29 * volume.GiB},
		"an earlier agent": {report(), 19 * volume.GiB, 9 * volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			b := ledgertest.New(t, tt.report)
			for layout, want := range map[volume.Layout]volume.Bytes{volume.Linear: 78 * volume.GiB, volume.Striped: tt.striped, volume.Raid1: tt.raid1} {
				offer, has := b.Offer("node-1", volume.Spec{Group: "flexlvm", Layout: layout})
				require.True(t, has)
				require.InDelta(t, float64(want), float64(offer.MaxVolumeSize), float64(volume.GiB), "%s: %s", layout, offer.MaxVolumeSize)
			}
		})
	}
	t.Run("what replicas hold is not for replicas", func(t *testing.T) {
		given := report(30*volume.GiB, 30*volume.GiB)
		given.Status.Pools[0].ReclaimableReplicas = ledgertest.Quantity(20 * volume.GiB)
		b := ledgertest.New(t, given)
		offer, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm", Layout: volume.Raid1, Kind: volume.Dataset})
		require.InDelta(t, float64(19*volume.GiB), float64(offer.MaxVolumeSize), float64(volume.GiB))
	})
}

// Whatever the ledger promises, the node's plans can make room for, even if LVM places the other volumes as badly as
// possible.
func TestLedgerPromisesWhatPlansCanBring(t *testing.T) {
	var evicted, promised int
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := &simulated{Scene: evictiontest.Scene{View: eviction.View{Now: evictiontest.Now, Cluster: evictiontest.Cluster}, Policy: eviction.DefaultPolicy()}}
		n.Policy.HighPercent = 100
		n.fill(r)
		b := ledgertest.New(t, n.report())
		for i := range r.IntN(3) {
			n.promise(b, ledgertest.Want(fmt.Sprintf("linear-%d", i), volume.Bytes(1+r.IntN(20))*volume.GiB))
		}
		wide := 1 + r.IntN(3)
		for i := range wide {
			promised += n.promiseWide(t, b, r, fmt.Sprint("wide-", i))
		}
		for len(n.unmade) > 0 {
			plan := n.Plan()
			evicted += len(plan.Evictions)
			n.carryOut(plan)
			require.True(t, n.makeOne(r), "seed %d: %d volumes are promised and find no room: %s", seed, len(n.unmade), plan.Pools[0].ShortfallMessage)
			if wide++; wide < 5 { // some volumes exist, and others do not
				b.Report(n.report())
				promised += n.promiseWide(t, b, r, fmt.Sprint("wide-", wide))
			}
		}
	}
	t.Logf("%d wide volumes promised, %d volumes evicted", promised, evicted)
	require.Greater(t, min(promised, evicted), 500, "the nodes are too tame")
}

// A simulated node has a pool on several devices.
type simulated struct {
	evictiontest.Scene
	unmade []persistentvolume.Volume
}

func (n *simulated) fill(r *rand.Rand) {
	devices := 2 + r.IntN(2)
	n.Pool("flexlvm", 50*devices)
	g := n.PoolNamed("flexlvm")
	for i := range devices {
		g.Devices, g.DeviceFree = append(g.Devices, fmt.Sprint("/dev/", i)), append(g.DeviceFree, 50*volume.GiB)
	}
	for i := range r.IntN(10) {
		state := []volume.State{volume.Retained, volume.Doomed, volume.Unreferenced, volume.Unreferenced}[r.IntN(4)]
		n.Volume(fmt.Sprint("v", i), state, 0, evictiontest.LastUsed(float64(r.IntN(20))), func(v *inventory.Volume) {
			v.ByDevice, v.Allocated = map[string]volume.Bytes{}, 0
			for d, path := range g.Devices {
				held := min(volume.Bytes(r.IntN(20))*volume.GiB, g.DeviceFree[d])
				v.ByDevice[path] = held
				v.Allocated += held
				g.DeviceFree[d] -= held
			}
		})
	}
}

func (n *simulated) report() *flexlvmv1.NodeStorage {
	p := n.Plan().Pools[0]
	return ledgertest.Report("node-1", p.Allocatable, func(out *flexlvmv1.Pool) {
		out.Reclaimable = ledgertest.Quantity(p.Reclaimable)
		for i := range p.Pool.DeviceFree {
			out.DeviceFree = append(out.DeviceFree, ledgertest.Quantity(p.Pool.DeviceFree[i]))
			out.DeviceReclaimable = append(out.DeviceReclaimable, ledgertest.Quantity(p.DeviceReclaimable[i]))
		}
	})
}

// promise reserves room for a volume, and creates its PersistentVolume.
func (n *simulated) promise(b *ledgertest.Books, w ledger.Want) bool {
	if b.Take("node-1", w) != nil {
		return false
	}
	n.PersistentVolume(w.PV, 0, func(c *persistentvolume.Volume) {
		c.Size, c.Shape, c.Charged = w.Spec.Size, w.Spec.Shape(), w.Spec.Charge()
		n.unmade = append(n.unmade, *c)
	})
	return true
}

// promiseWide promises as large a volume of several devices as is offered, or a smaller one, and returns how many it has
// promised.
func (n *simulated) promiseWide(t *testing.T, b *ledgertest.Books, r *rand.Rand, name string) int {
	w := ledgertest.Want(name, 0)
	w.Spec.Layout = []volume.Layout{volume.Striped, volume.Raid1}[r.IntN(2)]
	if w.Spec.Layout == volume.Striped {
		w.Spec.Stripes = 2 + r.IntN(len(n.PoolNamed("flexlvm").Devices)-1)
	}
	offer, _ := b.Offer("node-1", w.Spec)
	part := offer.MaxVolumeSize / volume.Bytes(1+r.IntN(3))
	w.Spec.Size = part - part%volume.Block
	if w.Spec.Size == 0 {
		return 0
	}
	require.True(t, n.promise(b, w), "what is offered can be reserved")
	return 1
}

// carryOut removes the volumes that a plan evicts, and the doomed ones.
func (n *simulated) carryOut(plan eviction.Result) {
	g := n.PoolNamed("flexlvm")
	n.View.Volumes = slices.DeleteFunc(n.View.Volumes, func(v inventory.Volume) bool {
		gone := v.State == volume.Doomed || slices.ContainsFunc(plan.Evictions, func(e eviction.Eviction) bool { return e.Volume.UUID == v.UUID })
		for d, path := range g.Devices {
			if gone {
				g.DeviceFree[d] += v.ByDevice[path]
				g.Free += v.ByDevice[path]
			}
		}
		return gone
	})
}

// makeOne creates a volume that fits. In half of the cases, linear volumes are created first, and on the devices with the most room,
// where they hurt the others most.
func (n *simulated) makeOne(r *rand.Rand) bool {
	g := n.PoolNamed("flexlvm")
	if r.IntN(2) == 0 {
		slices.SortStableFunc(n.unmade, func(a, b persistentvolume.Volume) int { return a.Shape.Devices() - b.Shape.Devices() })
	}
	for i, c := range n.unmade {
		device := volume.XFSDeviceSize(c.Size, 0)
		share, left := c.Shape.Share(device, g.Extent), c.Charged
		if !c.Shape.Holds(g.DeviceFree, device, g.Extent) {
			continue
		}
		order := r.Perm(len(g.Devices))
		if c.Shape.Devices() > 1 || r.IntN(2) == 0 {
			slices.SortFunc(order, func(a, b int) int { return int(g.DeviceFree[b]/volume.MiB - g.DeviceFree[a]/volume.MiB) })
		} else {
			share = left
		}
		n.Volume(c.PV, volume.Ready, 0, func(v *inventory.Volume) {
			v.Shape, v.Size, v.Allocated, v.ByDevice = c.Shape, c.Size, c.Charged, map[string]volume.Bytes{}
			for _, d := range order {
				held := min(share, left, g.DeviceFree[d])
				v.ByDevice[g.Devices[d]] = held
				g.DeviceFree[d] -= held
				left -= held
			}
		})
		n.unmade = slices.Delete(n.unmade, i, i+1)
		return true
	}
	return false
}

// The free room of devices that LVM may not allocate from is no room for a growth, though LVM counts it as free.
func TestGrowBesideAClosedDevice(t *testing.T) {
	const gib = volume.GiB
	for open, want := range map[volume.Bytes]ledger.Outcome{5 * gib: ledger.MakingRoom, 9*gib + gib/2: ledger.Granted} {
		l := ledgertest.New(t, ledgertest.Report("node-1", gib, func(p *flexlvmv1.Pool) {
			amounts(100*gib, 20*gib, 15*gib, 20*gib+device(1))(p)
			p.DeviceFree, p.Promised = quantities(open), ledgertest.Quantity(device(10)-device(1))
		}))
		object := bound(ledgertest.Want("a", gib), 7, growingTo(10*gib))
		l.Written(object)
		got := l.Grow(object, 10*gib)
		require.Equal(t, want, got.Outcome, got.Why)
	}
}
