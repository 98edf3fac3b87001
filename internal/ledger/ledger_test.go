package ledger_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestLedgerPromisesNothingTwice(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 10*ledgertest.OneGiB), ledgertest.Report("node-2", ledgertest.OneGiB))
	require.Equal(t, []string{"node-1", "node-2"}, b.Nodes())
	require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB)))
	require.Equal(t, []string{"node-1"}, b.Changes())
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"))

	require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB)), "again")
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"))

	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"), "seen back: neither twice nor not at all")
	require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB)), "and asked for once more")
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"))
	b.Now = b.Now.Add(time.Hour)
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"), "what is written does not lapse")

	b.Changes()
	b.Left(ledgertest.Report("node-1", 10*ledgertest.OneGiB), "a")
	require.Equal(t, []string{"node-1"}, b.Changes())
	require.Equal(t, 10*ledgertest.OneGiB, b.Room("node-1"))
}

func TestLedgerHundredClaims(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 10*ledgertest.OneGiB+ledgertest.OneGiB/2))
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		served int
	)
	for i := range 100 {
		all.Go(func() {
			_, err := b.Reserve("node-1", []ledger.Want{ledgertest.Want(fmt.Sprint("pvc-", i), volume.GiB)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
			}
		})
	}
	all.Wait()
	require.Equal(t, 10, served)
	require.EqualError(t, b.Take("node-1", ledgertest.Want("more", volume.GiB)), fmt.Sprintf(
		`node "node-1" has no room for it: %d bytes (%s) are needed and volume group "flexlvm" can still promise %d bytes (%s); the scheduler is asked for another node`,
		int64(ledgertest.OneGiB), ledgertest.OneGiB, int64(ledgertest.OneGiB/2), ledgertest.OneGiB/2))
}

func TestLedgerServesAPodWholeOrNotAtAll(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB), ledgertest.Report("node-2", 3*ledgertest.OneGiB))
	three := []ledger.Want{ledgertest.Want("a", volume.GiB), ledgertest.Want("b", volume.GiB), ledgertest.Want("c", volume.GiB-volume.Block)}
	err := b.Take("node-1", three...)
	require.ErrorContains(t, err, `node "node-1" has no room for the claims claim-a, claim-b, claim-c together, which are used by one pod`)
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"), "nothing is kept")
	require.Equal(t, []string{"node-1"}, b.Changes())

	// A hold keeps the scheduler, which checks the claims one by one, from choosing the node again.
	offer, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Equal(t, volume.GiB-volume.Block, offer.MaxVolumeSize)
	b.Now = b.Now.Add(2 * time.Minute)
	offer, _ = b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Greater(t, offer.MaxVolumeSize, volume.GiB, "but others not for ever")

	require.Error(t, b.Take("node-1", three...))
	b.Report(ledgertest.Report("node-1", 4*ledgertest.OneGiB))
	offer, _ = b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Greater(t, offer.MaxVolumeSize, volume.GiB, "and not once there may be room")

	require.NoError(t, b.Take("node-2", three...))
	require.Less(t, b.Room("node-2"), 8*volume.MiB)
	// The other claims come one after the other, and find their reservations.
	b.Written(ledgertest.PersistentVolume("node-2", three[0]))
	require.NoError(t, b.Take("node-2", three[1], three[0], three[2]))
	require.Less(t, b.Room("node-2"), 8*volume.MiB)
	require.Error(t, b.Take("node-2", ledgertest.Want("d", volume.GiB)))
}

// A claim whose PersistentVolume exists keeps its room, which must not be promised to the pod's other claims.
func TestLedgerCountsAnotherClaimThatIsWritten(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB+ledgertest.OneGiB/2))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("other", volume.GiB)))
	require.ErrorContains(t, b.Take("node-1", ledgertest.Want("b", volume.GiB), ledgertest.Want("a", volume.GiB)), "has no room")
	require.Equal(t, ledgertest.OneGiB/2, b.Room("node-1"))
}

func TestLedgerReservationsMoveAndLapse(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB), ledgertest.Report("node-2", 2*ledgertest.OneGiB))
	require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB), ledgertest.Want("b", volume.GiB)))
	require.Zero(t, b.Room("node-1"))
	require.NoError(t, b.Take("node-2", ledgertest.Want("b", volume.GiB)), "the scheduler chose again")
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-2"))

	require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB), ledgertest.Want("c", volume.GiB)))
	b.Now = b.Now.Add(61 * time.Second)
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "another claim whose turn never came")
	b.Now = b.Now.Add(5 * time.Minute)
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "its write may still be under way")
	b.Now = b.Now.Add(5 * time.Minute)
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"), "a write that never was")
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "or came late")
}

func TestFitsReservesNothing(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB), ledgertest.Report("node-2", 2*ledgertest.OneGiB))
	a, large := ledgertest.Want("a", volume.GiB), ledgertest.Want("a", 3*volume.GiB)
	for range 3 {
		require.NoError(t, b.Fits("node-1", a))
		require.EqualError(t, b.Fits("node-1", large), b.Take("node-1", large).Error())
	}
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"))
	require.NoError(t, b.Take("node-2", a))
	require.NoError(t, b.Fits("node-1", a))
	require.Error(t, b.Fits("node-1", large))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-2"), "its reservation stays")
	b.Written(ledgertest.PersistentVolume("node-2", a))
	require.NoError(t, b.Fits("node-1", large), "it has its room")
}

// The watch of a new leader starts with an older state than the last leader left.
func TestLedgerInheritsWhatItsWatchDoesNotShowYet(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB))
	b.Inherited(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	b.Inherited(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB)))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"))
	b.Inherited(ledgertest.PersistentVolume("node-1", ledgertest.Want("gone", volume.GiB)))
	require.Zero(t, b.Room("node-1"))
	b.Now = b.Now.Add(ledger.ReservationTime + time.Minute)
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "deleted before the watch began")
}

// A PersistentVolume is deleted between the list of a new leader and its use. Its room is free once the node's report is
// confirmed. A later object of the same name keeps its room.
func TestLedgerDoesNotInheritWhatIsGone(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB))
	at := func(version string) *corev1.PersistentVolume {
		v := ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB))
		v.ResourceVersion = version
		return v
	}
	b.Written(at("7"))
	b.Gone(at("7").Name)
	b.Inherited(at("6"))
	b.Inherited(at("7"))
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "it is charged once, until the report is confirmed")
	_, departures, ask := b.Unconfirmed("node-1")
	require.True(t, ask)
	b.Inherited(at("9"))
	require.Zero(t, b.Room("node-1"), "another one of that name")
	b.Gone(at("9").Name)
	b.Confirm(ledgertest.Report("node-1", 2*ledgertest.OneGiB), departures)
	require.Equal(t, ledgertest.OneGiB, b.Room("node-1"), "the later one is not confirmed")
	_, departures, _ = b.Unconfirmed("node-1")
	b.Confirm(ledgertest.Report("node-1", 2*ledgertest.OneGiB), departures)
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"))
}

func TestLedgerCharges(t *testing.T) {
	options := func(key, value string) func(*corev1.PersistentVolume) {
		return func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Options[key] = value }
	}
	for name, tt := range map[string]struct {
		pool   func(*flexlvmv1.Pool)
		change func(*corev1.PersistentVolume)
		taken  volume.Bytes
	}{
		"its charge":                {taken: ledgertest.OneGiB},
		"released":                  {change: func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }, taken: ledgertest.OneGiB},
		"of another group":          {change: options(volume.OptionGroup, "other")},
		"of a group replaced":       {change: options(volume.OptionGroupUUID, "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S")},
		"of any group of that name": {change: func(v *corev1.PersistentVolume) { delete(v.Spec.FlexVolume.Options, volume.OptionGroupUUID) }, taken: ledgertest.OneGiB},
		"nonsense":                  {change: options(volume.OptionSize, "much"), taken: ledgertest.OneGiB},
		"without a node":            {change: func(v *corev1.PersistentVolume) { v.Labels = nil }},
		"of another driver":         {change: func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Driver = "example.com/other" }},
		"grown": {change: func(v *corev1.PersistentVolume) {
			v.Spec.Capacity[corev1.ResourceStorage] = ledgertest.Quantity(2 * volume.GiB)
		}, taken: volume.XFSDeviceSize(2*volume.GiB, 0)},
		"large extents": {pool: func(p *flexlvmv1.Pool) { p.ExtentSize = ledgertest.Quantity(volume.GiB) }, taken: 2 * volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.pool == nil {
				tt.pool = func(*flexlvmv1.Pool) {}
			}
			if tt.change == nil {
				tt.change = func(*corev1.PersistentVolume) {}
			}
			b := ledgertest.New(t, ledgertest.Report("node-1", 10*volume.GiB, tt.pool))
			b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), tt.change))
			require.Equal(t, (10*volume.GiB - tt.taken).String(), b.Room("node-1").String())
			b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), options(volume.OptionGroup, "other")))
			require.Equal(t, 10*volume.GiB, b.Room("node-1"), "changed")
		})
	}
}

func TestLedgerRefusesWithAReason(t *testing.T) {
	ailing := ledgertest.Report("node-4", 10*ledgertest.OneGiB)
	ailing.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: flexlvmv1.ReasonToolsMissing, Message: "the host lacks mkfs.xfs"}}
	blocked := ledgertest.Report("node-5", 10*ledgertest.OneGiB)
	blocked.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "EvictionBlocked", Message: "nothing is evicted"}}
	b := ledgertest.New(t,
		ledgertest.Report("node-1", 10*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Name = "data" }),
		ledgertest.Report("node-2", 10*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Closed = "LVM cannot find 1 device" }),
		&flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}}, ailing, blocked,
	)
	for node, reason := range map[string]string{
		"node-1": `has no volume group "flexlvm"; it has data`,
		"node-2": `takes no new volumes in volume group "flexlvm": LVM cannot find 1 device`,
		"node-3": `has no volume group "flexlvm"; it has none`,
		"node-4": `takes no new volumes in volume group "flexlvm": the host lacks mkfs.xfs`,
		"node-9": "has not reported its volume groups; check `kubectl get nodestorages`",
	} {
		err := b.Take(node, ledgertest.Want("a", volume.GiB))
		require.ErrorContains(t, err, reason)
		var none *ledger.NoRoomError
		require.ErrorAs(t, err, &none)
	}
	require.NoError(t, b.Take("node-5", ledgertest.Want("a", volume.GiB)))
	b.Forget(blocked)
	require.ErrorContains(t, b.Take("node-5", ledgertest.Want("b", volume.GiB)), "has not reported")
	require.NotContains(t, b.Nodes(), "node-5")
}

// The offered size can be reserved, and not one block more.
func TestLedgerOffersWhatItCanReserve(t *testing.T) {
	for _, extent := range []volume.Bytes{4 * volume.MiB, 32 * volume.MiB, volume.GiB} {
		for _, allocatable := range []volume.Bytes{299 * volume.MiB, 300 * volume.MiB, volume.GiB + 12345, 100 * volume.GiB, 9 * volume.TiB} {
			b := ledgertest.New(t, ledgertest.Report("node-1", allocatable, func(p *flexlvmv1.Pool) { p.ExtentSize = ledgertest.Quantity(extent) }))
			offer, has := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
			require.True(t, has)
			if offer.MaxVolumeSize > 0 {
				require.NoError(t, b.Take("node-1", ledgertest.Want("a", offer.MaxVolumeSize)), "%s of %s in %s", offer.MaxVolumeSize, allocatable, extent)
			}
			require.Error(t, b.Take("node-1", ledgertest.Want("a", offer.MaxVolumeSize+volume.Block)), "%s of %s in %s", offer.MaxVolumeSize, allocatable, extent)
		}
	}
	b := ledgertest.New(t, ledgertest.Report("node-1", ledgertest.OneGiB))
	_, has := b.Offer("node-1", volume.Spec{Group: "other"})
	require.False(t, has, "nodes without the pool offer nothing")
	_, has = b.Offer("node-2", volume.Spec{Group: "flexlvm"})
	require.False(t, has)
}

func TestLedgerKnowsLongNames(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report(ledgertest.LongName, 2*ledgertest.OneGiB))
	b.Written(ledgertest.PersistentVolume(ledgertest.LongName, ledgertest.Want("a", volume.GiB)))
	require.Equal(t, ledgertest.OneGiB, b.Room(ledgertest.LongName))
	require.Equal(t, []string{pv.NodeLabelValue(ledgertest.LongName)}, b.Changes())
}

// Layouts on several physical devices depend on what is free on each.
func TestLedgerLayouts(t *testing.T) {
	devices := func(free ...volume.Bytes) func(*flexlvmv1.Pool) {
		return func(p *flexlvmv1.Pool) {
			for _, f := range free {
				p.DeviceFree = append(p.DeviceFree, ledgertest.Quantity(f))
			}
		}
	}
	reclaimable := func(b volume.Bytes) func(*flexlvmv1.Pool) {
		return func(p *flexlvmv1.Pool) { p.Reclaimable = ledgertest.Quantity(b) }
	}
	mirrored := func(name string, size volume.Bytes) ledger.Want {
		w := ledgertest.Want(name, size)
		w.Spec.Layout = volume.Raid1
		return w
	}
	raid1 := volume.Spec{Group: "flexlvm", Layout: volume.Raid1}
	leg := ledgertest.OneGiB + volume.DefaultExtent // including RAID's own metadata

	t.Run("its true cost", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 10*leg, devices(5*leg, 5*leg)))
		require.NoError(t, b.Take("node-1", mirrored("a", volume.GiB)))
		require.Equal(t, 8*leg, b.Room("node-1"))
		b.Written(ledgertest.PersistentVolume("node-1", mirrored("a", volume.GiB)))
		require.Equal(t, 8*leg, b.Room("node-1"))
	})
	t.Run("distinct devices", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 11*leg, devices(10*leg, leg/2)))
		require.ErrorContains(t, b.Take("node-1", mirrored("a", volume.GiB)),
			`has no room for it: layout raid1 needs `+fmt.Sprint(int64(leg))+` bytes (1.12 GiB) on each of 2 devices, and volume group "flexlvm", of 2 devices, has not so much free on as many`)
		require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB)))
	})
	t.Run("offers what it can reserve", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 12*leg, devices(7*leg, 3*leg, 2*leg)))
		offer, has := b.Offer("node-1", raid1)
		require.True(t, has)
		require.NoError(t, b.Take("node-1", mirrored("a", offer.MaxVolumeSize)))
		b = ledgertest.New(t, ledgertest.Report("node-1", 12*leg, devices(7*leg, 3*leg, 2*leg)))
		require.Error(t, b.Take("node-1", mirrored("a", offer.MaxVolumeSize+volume.Block)))
	})
	t.Run("offers no more than its room", func(t *testing.T) {
		for _, left := range []volume.Bytes{0, 10 * leg} {
			b := ledgertest.New(t, ledgertest.Report("node-1", 62*leg, devices(30*leg, 30*leg, leg, leg)))
			striped := ledgertest.Want("a", 0)
			striped.Spec.Layout, striped.Spec.Stripes = volume.Striped, 4
			striped.Spec.Size = striped.Spec.HeldBy(62*leg - left)
			b.Written(ledgertest.PersistentVolume("node-1", striped))
			room := b.Room("node-1")
			require.InDelta(t, float64(left), float64(room), float64(leg))
			offer, has := b.Offer("node-1", raid1)
			require.True(t, has)
			if left == 0 {
				require.Zero(t, offer.MaxVolumeSize)
				continue
			}
			require.InDelta(t, float64(5*leg), float64(offer.MaxVolumeSize), float64(leg))
			require.NoError(t, b.Take("node-1", mirrored("b", offer.MaxVolumeSize)))
		}
	})
	t.Run("what is promised may come to lie anywhere", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 6*leg, devices(3*leg, 3*leg)))
		require.NoError(t, b.Take("node-1", ledgertest.Want("a", volume.GiB), ledgertest.Want("b", volume.GiB)))
		require.Error(t, b.Take("node-1", mirrored("c", 2*volume.GiB)))
		require.NoError(t, b.Take("node-1", mirrored("c", volume.GiB-64*volume.MiB)))
	})
	t.Run("of a pod together", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 6*leg, devices(3*leg, 3*leg)))
		three := []ledger.Want{mirrored("a", volume.GiB), mirrored("b", volume.GiB), mirrored("c", volume.GiB)}
		require.NoError(t, b.Take("node-1", three...))
		b = ledgertest.New(t, ledgertest.Report("node-1", 6*leg, devices(4*leg, 2*leg)))
		require.ErrorContains(t, b.Take("node-1", three...), "on each of 2 devices")
		require.Equal(t, 6*leg, b.Room("node-1"), "nothing is kept")
	})
	t.Run("of a pod one by one", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 6*leg, devices(3*leg, 3*leg)))
		one, two, three := mirrored("a", volume.GiB), mirrored("b", volume.GiB), mirrored("c", volume.GiB)
		require.NoError(t, b.Take("node-1", one, two, three))
		b.Written(ledgertest.PersistentVolume("node-1", one))
		require.NoError(t, b.Take("node-1", two, one, three), "before its claim is bound")
		b.Now = b.Now.Add(2 * ledger.ReservationTime) // the provisioner was restarted, for example
		offer, _ := b.Offer("node-1", raid1)
		require.Equal(t, 2*volume.GiB, offer.MaxVolumeSize-offer.MaxVolumeSize%volume.GiB, "the scheduler sees that they fit")
		require.NoError(t, b.Take("node-1", two, three))
		b.Written(ledgertest.PersistentVolume("node-1", two))
		require.NoError(t, b.Take("node-1", three))
		require.Error(t, b.Take("node-1", three, mirrored("d", volume.MiB)))
	})
	t.Run("beside others that are not made yet", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 12*leg, devices(4*leg, 4*leg, 4*leg)))
		striped := ledgertest.Want("striped", 3*volume.GiB-100*volume.MiB) // a GiB on each of three devices
		striped.Spec.Layout, striped.Spec.Stripes = volume.Striped, 3
		require.NoError(t, b.Take("node-1", striped))
		require.NoError(t, b.Take("node-1", mirrored("a", volume.GiB)))
		require.NoError(t, b.Take("node-1", ledgertest.Want("linear", volume.GiB)))
		// The shares of the volumes on several devices, and all of the linear one.
		require.Error(t, b.Take("node-1", mirrored("b", 2*volume.GiB)))
		require.NoError(t, b.Take("node-1", mirrored("b", volume.GiB-300*volume.MiB)))
	})
	t.Run("where it lies what may be evicted is not told", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 6*leg, devices(leg, leg), reclaimable(4*leg)))
		require.Error(t, b.Take("node-1", mirrored("a", 2*volume.GiB)))
		require.NoError(t, b.Take("node-1", mirrored("a", volume.GiB)))
		require.NoError(t, b.Take("node-1", ledgertest.Want("b", 3*volume.GiB)))
	})
}
