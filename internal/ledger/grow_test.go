package ledger_test

import (
	"fmt"
	"math/rand"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// bound returns the bound PersistentVolume of a want, at a resourceVersion.
func bound(w ledger.Want, version int, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return ledgertest.PersistentVolume("node-1", w, append([]func(*corev1.PersistentVolume){func(o *corev1.PersistentVolume) {
		o.Status.Phase, o.ResourceVersion = corev1.VolumeBound, strconv.Itoa(version)
	}}, change...)...)
}

func growingTo(size volume.Bytes) func(*corev1.PersistentVolume) {
	return func(o *corev1.PersistentVolume) {
		o.Annotations[pv.AnnotationGrowingTo] = strconv.FormatInt(int64(size), 10)
	}
}

func grownTo(size volume.Bytes) func(*corev1.PersistentVolume) {
	return func(o *corev1.PersistentVolume) {
		o.Spec.Capacity[corev1.ResourceStorage] = ledgertest.Quantity(size)
	}
}

// amounts sets the amounts of a pool.
func amounts(size, free, reclaimable, allocatable volume.Bytes) func(*flexlvmv1.Pool) {
	return func(p *flexlvmv1.Pool) {
		p.Size, p.Free = ledgertest.Quantity(size), ledgertest.Quantity(free)
		p.Reclaimable, p.Allocatable = ledgertest.Quantity(reclaimable), ledgertest.Quantity(allocatable)
	}
}

// device returns what a volume of gib GiB takes.
func device(gib int) volume.Bytes { return volume.XFSDeviceSize(volume.Bytes(gib)*volume.GiB, 0) }

func TestGrow(t *testing.T) {
	const gib = volume.GiB
	one := device(1)
	for name, tt := range map[string]struct {
		want   ledger.Want
		pool   func(*flexlvmv1.Pool)
		change func(*corev1.PersistentVolume)
		to     volume.Bytes
		is     ledger.Outcome
		why    string
	}{
		"free": {
			pool: amounts(100*gib, 20*gib, 0, 20*gib+one), to: 10 * gib, is: ledger.Granted, why: "are reserved",
		},
		"to be evicted": {
			pool: amounts(100*gib, 2*gib, 30*gib, 32*gib+one), to: 10 * gib, is: ledger.MakingRoom, why: "more are needed and kept for it",
		},
		"promised to others": {
			pool: amounts(100*gib, 20*gib, 0, 5*gib+one), to: 10 * gib, is: ledger.Waiting, why: "can still promise 5368709120 bytes (5 GiB)",
		},
		"of others, until evicted": {
			pool: amounts(100*gib, 20*gib, 20*gib, 20*gib+one), to: 10 * gib, is: ledger.MakingRoom,
		},
		"never": {
			pool: amounts(100*gib, 90*gib, 0, 90*gib+one), to: 100 * gib, is: ledger.Refused, why: `and all of volume group "flexlvm" is 107374182400 bytes (100 GiB)`,
		},
		"never anywhere": {
			pool: amounts(100*gib, 90*gib, 0, 90*gib+one), to: 501 * volume.TiB, is: ledger.Refused, why: "the most that is supported is 500 TiB",
		},
		"of a group replaced": {
			pool: amounts(100*gib, 90*gib, 0, 90*gib+one), to: 10 * gib, is: ledger.Waiting, why: "is not the one that the volume was made in",
			change: func(o *corev1.PersistentVolume) {
				o.Spec.FlexVolume.Options[volume.OptionGroupUUID] = "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
			},
		},
		"closed": {
			pool: func(p *flexlvmv1.Pool) {
				amounts(100*gib, 90*gib, 0, 90*gib+one)(p)
				p.Closed = "its metadata is full"
			}, to: 10 * gib, is: ledger.Waiting, why: "nothing more is promised in volume group \"flexlvm\": its metadata is full",
		},
		"on free devices": {
			want: mirroredWant("a", gib), to: 10 * gib, is: ledger.Granted,
			pool: func(p *flexlvmv1.Pool) {
				amounts(100*gib, 30*gib, 0, 30*gib+3*one)(p)
				p.DeviceFree = quantities(15*gib, 15*gib)
			},
		},
		"on devices from which something may be evicted": {
			want: mirroredWant("a", gib), to: 10 * gib, is: ledger.MakingRoom,
			pool: func(p *flexlvmv1.Pool) {
				amounts(100*gib, 20*gib, 40*gib, 60*gib+3*one)(p)
				p.DeviceFree, p.DeviceReclaimable = quantities(18*gib, 2*gib), quantities(20*gib, 20*gib)
			},
		},
		"copies on two devices of three": {
			want: mirroredWant("a", gib), to: 10 * gib, is: ledger.Waiting, why: "layout raid1 needs",
			pool: func(p *flexlvmv1.Pool) {
				amounts(100*gib, 20*gib, 60*gib, 80*gib+3*one)(p)
				p.DeviceFree, p.DeviceReclaimable = quantities(18*gib, 1*gib, 1*gib), quantities(20*gib, 20*gib, 20*gib)
			},
		},
		"on devices that nobody can say are evicted": {
			want: mirroredWant("a", gib), to: 10 * gib, is: ledger.Waiting, why: "layout raid1 needs",
			pool: func(p *flexlvmv1.Pool) {
				amounts(100*gib, 20*gib, 40*gib, 60*gib+3*one)(p)
				p.DeviceFree = quantities(18*gib, 2*gib)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.want.PV == "" {
				tt.want = ledgertest.Want("a", gib)
			}
			if tt.change == nil {
				tt.change = func(*corev1.PersistentVolume) {}
			}
			b := ledgertest.New(t, ledgertest.Report("node-1", gib, tt.pool))
			object := bound(tt.want, 7, tt.change)
			b.Written(object)
			before := b.Room("node-1")
			peeked := b.MayGrow(object, tt.to)
			require.Equal(t, before, b.Room("node-1"), "nothing is promised by asking")
			got := b.Grow(object, tt.to)
			require.Equal(t, tt.is, got.Outcome, got.Why)
			require.Equal(t, peeked, got)
			require.Contains(t, got.Why, tt.why)
			if got.Outcome.Promised() {
				require.Less(t, b.Room("node-1"), before)
				require.Equal(t, got, b.Grow(object, tt.to), "and is not in its own way")
			} else {
				require.Equal(t, before, b.Room("node-1"))
			}
		})
	}
}

// No room is promised for a growth that LVM refuses: a volume with copy-on-write snapshots can grow once they are
// deleted.
func TestGrowWaitsForCopyOnWriteSnapshots(t *testing.T) {
	const gib = volume.GiB
	l := ledgertest.New(t, ledgertest.Report("node-1", 100*gib))
	want := ledgertest.Want("pvc-1", gib)
	l.Written(bound(want, 1))
	l.Written(bound(ledgertest.Want("pvc-2", gib), 1))
	snap := ledgertest.Want("snap-1", gib)
	snap.Spec.Kind, snap.Spec.CloneOf = volume.Snapshot, "pvc-1"
	require.NoError(t, l.Take("node-1", snap))
	free := l.Room("node-1")
	answer := l.Grow(bound(want, 1), 2*gib)
	require.Equal(t, ledger.Waiting, answer.Outcome)
	require.Contains(t, answer.Why, "it has 1 snapshot with a store of its own")
	require.Equal(t, free, l.Room("node-1"), "nothing is kept for it")
	require.True(t, l.Grow(bound(ledgertest.Want("pvc-2", gib), 1), 2*gib).Outcome.Promised(), "another is not held")
	l.Gone("snap-1")
	require.True(t, l.Grow(bound(want, 1), 2*gib).Outcome.Promised())
}

func TestGrowOfANodeThatHasNotReported(t *testing.T) {
	b := ledgertest.New(t)
	got := b.Grow(bound(ledgertest.Want("a", volume.GiB), 7), 2*volume.GiB)
	require.Equal(t, ledger.Waiting, got.Outcome)
	require.Contains(t, got.Why, `node "node-1" has not reported its volume groups`)
	require.True(t, b.Holds(bound(ledgertest.Want("a", volume.TiB), 7)), "nobody knows")
}

// A thin volume grows at one moment: the whole increase must be free then, however little its class promises.
func TestGrowThin(t *testing.T) {
	const gib = volume.GiB
	for name, tt := range map[string]struct {
		free, reclaimable, removing volume.Bytes
		to                          volume.Bytes
		is                          ledger.Outcome
		why                         string
	}{
		"being removed":       {free: 5 * gib, removing: 15 * gib, to: 20 * gib, is: ledger.MakingRoom},
		"free":                {free: 30 * gib, to: 20 * gib, is: ledger.Granted},
		"to be evicted":       {free: 5 * gib, reclaimable: 30 * gib, to: 20 * gib, is: ledger.MakingRoom},
		"not to be evicted":   {free: 5 * gib, reclaimable: 10 * gib, to: 20 * gib, is: ledger.Waiting, why: "must be free at one moment"},
		"larger than all":     {free: 90 * gib, to: 150 * gib, is: ledger.Refused, why: "it would grow by"},
		"promised, all of it": {free: 90 * gib, to: 95 * gib, is: ledger.Waiting, why: "can still promise"},
	} {
		t.Run(name, func(t *testing.T) {
			b := ledgertest.New(t, ledgertest.ThinReport("node-1", 40*gib, amounts(100*gib, tt.free, tt.reclaimable, 40*gib), func(p *flexlvmv1.Pool) { p.Removing = ledgertest.Quantity(tt.removing) }))
			object := bound(ledgertest.ThinWant("a", gib, 2000), 7)
			b.Written(object)
			got := b.Grow(object, tt.to)
			require.Equal(t, tt.is, got.Outcome, got.Why)
			require.Contains(t, got.Why, tt.why)
		})
	}
}

// A promised growth is charged from the answer on, and the charge falls only when the object is written. An older
// state of the object does not matter.
func TestGrowthIsKeptUntilItIsWritten(t *testing.T) {
	const gib = volume.GiB
	want := ledgertest.Want("a", gib)
	begin := func() *ledgertest.Books {
		b := ledgertest.New(t, ledgertest.Report("node-1", gib, amounts(100*gib, 20*gib, 0, device(1)+20*gib)))
		b.Written(bound(want, 7))
		require.Equal(t, ledger.Granted, b.Grow(bound(want, 7), 10*gib).Outcome)
		return b
	}
	kept := 20*gib + device(1) - device(10)
	t.Run("written", func(t *testing.T) {
		b := begin()
		require.Equal(t, kept, b.Room("node-1"))
		b.Written(bound(want, 7))
		require.Equal(t, kept, b.Room("node-1"), "the watch shows what was before")
		b.Written(bound(want, 8, grownTo(10*gib)))
		require.Equal(t, kept, b.Room("node-1"))
		b.Written(bound(want, 7))
		require.Equal(t, kept, b.Room("node-1"), "the watch is behind what we wrote")
	})
	t.Run("refused by the API server", func(t *testing.T) {
		b := begin()
		b.NotWritten(bound(want, 7))
		require.Equal(t, 20*gib, b.Room("node-1"))
	})
	t.Run("nobody knows", func(t *testing.T) {
		b := begin()
		b.Unsure(bound(want, 7))
		b.NotWritten(bound(want, 7)) // another attempt
		require.Equal(t, kept, b.Room("node-1"), "the first may be done yet")
		require.Equal(t, ledger.Granted, b.Grow(bound(want, 7), 2*gib).Outcome)
		require.Equal(t, kept, b.Room("node-1"), "also where less is asked for by now")
		b.Written(bound(want, 8))
		require.Equal(t, 20*gib, b.Room("node-1"), "it cannot any more")
	})
	t.Run("lowered", func(t *testing.T) {
		b := begin()
		b.Written(bound(want, 8, growingTo(10*gib)))
		require.Equal(t, kept, b.Room("node-1"))
		require.Equal(t, ledger.Granted, b.Grow(bound(want, 8, growingTo(10*gib)), 2*gib).Outcome)
		require.Equal(t, kept, b.Room("node-1"), "not before it is written")
		b.Written(bound(want, 9, grownTo(2*gib)))
		require.Equal(t, 20*gib+device(1)-device(2), b.Room("node-1"))
	})
	t.Run("released", func(t *testing.T) {
		b := begin()
		b.Written(bound(want, 8, growingTo(10*gib), func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased }))
		require.Equal(t, 20*gib, b.Room("node-1"))
	})
	t.Run("gone", func(t *testing.T) {
		b := begin()
		b.Gone("a")
		require.Equal(t, kept, b.Room("node-1"), "until its node's report is known to be newer")
		b.Left(ledgertest.Report("node-1", gib, amounts(100*gib, 20*gib, 0, 20*gib)))
		require.Equal(t, 20*gib, b.Room("node-1"))
	})
	t.Run("inherited after an older state was seen", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", gib, amounts(100*gib, 20*gib, 0, device(1)+20*gib)))
		b.Written(bound(want, 7))
		b.Inherited(bound(want, 8, grownTo(10*gib)))
		require.Equal(t, kept, b.Room("node-1"))
		b.Inherited(bound(want, 7))
		require.Equal(t, kept, b.Room("node-1"))
	})
}

// In any order of requests, and however late the watch, no more is promised than is free or evictable, and a promise
// does not shrink before it is written.
func TestNeverMoreIsPromisedThanThereIs(t *testing.T) {
	for seed := range int64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { promiseAtRandom(t, rand.New(rand.NewSource(seed))) })
	}
}

func promiseAtRandom(t *testing.T, random *rand.Rand) {
	const gib = volume.GiB
	free, reclaimable := volume.Bytes(random.Intn(60))*gib, volume.Bytes(random.Intn(60))*gib
	thin := random.Intn(2) == 0
	ratio := []volume.Ratio{0, 1500, 3000}[random.Intn(3)]
	wants := make([]ledger.Want, 4)
	held := volume.Bytes(0)
	for i := range wants {
		wants[i] = ledgertest.Want(fmt.Sprint("v", i), gib)
		if thin {
			wants[i] = ledgertest.ThinWant(fmt.Sprint("v", i), gib, ratio)
		}
		held += wants[i].Spec.Charge()
	}
	set := amounts(200*gib, free, reclaimable, held+free+reclaimable)
	b := ledgertest.New(t, ledgertest.ThinReport("node-1", gib, set))
	b.Report(func() *flexlvmv1.NodeStorage {
		r := ledgertest.ThinReport("node-1", gib, set)
		set(&r.Status.Pools[0])
		return r
	}())
	room := func() volume.Bytes {
		offer, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm", Layout: wants[0].Spec.Layout, ThinPool: wants[0].Spec.ThinPool})
		return offer.Room
	}
	api, version := map[string]*corev1.PersistentVolume{}, 10
	history := map[string][]*corev1.PersistentVolume{}
	store := func(o *corev1.PersistentVolume) {
		api[o.Name] = o
		history[o.Name] = append(history[o.Name], o)
	}
	for _, w := range wants {
		store(bound(w, version))
		b.Written(api[w.PV])
	}
	charged := func() (sum volume.Bytes) {
		for _, o := range api {
			sum += chargeOf(t, o)
		}
		return sum
	}
	require.Equal(t, free+reclaimable, room())
	for range 60 {
		w := wants[random.Intn(len(wants))]
		object := api[w.PV]
		before := room()
		switch random.Intn(4) {
		case 0: // the watch shows something old
			old := history[w.PV]
			b.Written(old[random.Intn(len(old))])
			require.LessOrEqual(t, room(), before, "on the word of the past")
			continue
		case 1:
			b.NotWritten(object)
			continue
		}
		to := volume.Bytes(1+random.Intn(80)) * gib
		size := object.Spec.Capacity[corev1.ResourceStorage]
		if int64(to) <= size.Value() {
			continue
		}
		got := b.Grow(object, to)
		require.LessOrEqual(t, room(), before)
		if !got.Outcome.Promised() {
			continue
		}
		version++
		change := growingTo(to)
		if got.Outcome == ledger.Granted {
			change = grownTo(to)
			require.LessOrEqual(t, chargeAt(w, to)-chargeAt(w, volume.Bytes(size.Value())), free+reclaimable)
		}
		next := bound(w, version, grownTo(volume.Bytes(size.Value())), change)
		if random.Intn(3) == 0 {
			b.Unsure(object)
		} else {
			store(next)
			b.Written(next)
		}
		require.LessOrEqual(t, charged(), held+free+reclaimable)
	}
}

func chargeAt(w ledger.Want, size volume.Bytes) volume.Bytes {
	w.Spec.Size = size
	return w.Spec.Charge()
}

// chargeOf returns the charge that the ledger must keep for a PersistentVolume.
func chargeOf(t *testing.T, o *corev1.PersistentVolume) volume.Bytes {
	t.Helper()
	v, err := persistentvolume.Parse(o)
	require.NoError(t, err)
	return v.Charge().In(volume.DefaultExtent)
}

func mirroredWant(name string, size volume.Bytes) ledger.Want {
	w := ledgertest.Want(name, size)
	w.Spec.Layout = volume.Raid1
	return w
}

func quantities(all ...volume.Bytes) (out []resource.Quantity) {
	for _, b := range all {
		out = append(out, ledgertest.Quantity(b))
	}
	return out
}
