package provision_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const groupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"

// longName has more characters than a label may have.
var longName = strings.Repeat("n", 60) + ".example.org"

// one is what a volume of 1 GiB takes of its pool.
var one = volume.DeviceSize(volume.GiB, 0)

func quantity(b volume.Bytes) resource.Quantity {
	return *resource.NewQuantity(int64(b), resource.BinarySI)
}

// reported is a node with a pool in which PersistentVolumes may take so much.
func reported(node string, allocatable volume.Bytes, change ...func(*flexlvmv1.Pool)) *flexlvmv1.NodeStorage {
	p := flexlvmv1.Pool{
		Name: "flexlvm", UUID: groupUUID, Layout: "linear", Size: quantity(100 * allocatable),
		Allocatable: quantity(allocatable), ExtentSize: quantity(4 * volume.MiB),
	}
	for _, c := range change {
		c(&p)
	}
	return &flexlvmv1.NodeStorage{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("report-of-" + node)},
		Status:     flexlvmv1.NodeStorageStatus{Pools: []flexlvmv1.Pool{p}},
	}
}

// books is a ledger with a clock, and what it has said of changes.
type books struct {
	*provision.Ledger
	t       *testing.T
	now     time.Time
	mu      sync.Mutex
	changed []string
}

func newBooks(t *testing.T, reports ...*flexlvmv1.NodeStorage) *books {
	b := &books{t: t, now: time.Unix(1000, 0)}
	b.Ledger = provision.NewLedger(func() time.Time { return b.now }, func(node string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.changed = append(b.changed, node)
	})
	for _, r := range reports {
		b.Report(r)
	}
	b.changed = nil
	return b
}

// said gives what has changed since it was last asked.
func (b *books) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.changed
	b.changed = nil
	slices.Sort(out)
	return slices.Compact(out)
}

func (b *books) room(node string) volume.Bytes {
	offer, has := b.Offer(node, provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
	require.True(b.t, has, node)
	return offer.Room
}

func want(name string, size volume.Bytes) provision.Want {
	return provision.Want{PV: name, Claim: "claim-" + name, Spec: volume.Spec{
		Group: "flexlvm", Name: volume.Name(name), Size: size, Layout: volume.Linear, Kind: volume.Claim, Cluster: clusterUID,
	}}
}

func (b *books) reserve(node string, wants ...provision.Want) error {
	uuids, err := b.Reserve(node, wants)
	if err == nil {
		require.Equal(b.t, map[volume.PoolName]string{"flexlvm": groupUUID}, uuids)
	}
	return err
}

// written is the PersistentVolume of a want.
func written(node string, w provision.Want, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	spec := w.Spec
	spec.GroupUUID = groupUUID
	c := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = quantity(spec.Size)
	})
	request := provision.Request{PVName: w.PV, Claim: c, Class: class(nil), Cluster: clusterUID}
	object := request.PersistentVolume(spec, provision.Parameters{Spec: volume.Spec{Group: "flexlvm", Layout: volume.Linear}}, provision.Node{Name: node, Hostname: node})
	for _, f := range change {
		f(object)
	}
	return object
}

func TestLedgerPromisesNothingTwice(t *testing.T) {
	b := newBooks(t, reported("node-1", 10*one), reported("node-2", one))
	require.Equal(t, []string{"node-1", "node-2"}, b.Nodes())
	require.NoError(t, b.reserve("node-1", want("a", volume.GiB)))
	require.Equal(t, []string{"node-1"}, b.said())
	require.Equal(t, 9*one, b.room("node-1"))

	require.NoError(t, b.reserve("node-1", want("a", volume.GiB)), "again")
	require.Equal(t, 9*one, b.room("node-1"))

	b.Written(written("node-1", want("a", volume.GiB)))
	require.Equal(t, 9*one, b.room("node-1"), "seen back: neither twice nor not at all")
	require.NoError(t, b.reserve("node-1", want("a", volume.GiB)), "and asked for once more")
	require.Equal(t, 9*one, b.room("node-1"))
	b.now = b.now.Add(time.Hour)
	require.Equal(t, 9*one, b.room("node-1"), "what is written does not lapse")

	b.said()
	b.Gone("a")
	require.Equal(t, []string{"node-1"}, b.said())
	require.Equal(t, 10*one, b.room("node-1"))
}

func TestLedgerHundredClaims(t *testing.T) {
	b := newBooks(t, reported("node-1", 10*one+one/2))
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		served int
	)
	for i := range 100 {
		all.Go(func() {
			_, err := b.Reserve("node-1", []provision.Want{want(fmt.Sprint("pvc-", i), volume.GiB)})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
			}
		})
	}
	all.Wait()
	require.Equal(t, 10, served)
	require.EqualError(t, b.reserve("node-1", want("more", volume.GiB)), fmt.Sprintf(
		`node "node-1" has no room for it: %d bytes (%s) are needed and volume group "flexlvm" can still promise %d bytes (%s); the scheduler is asked for another node`,
		int64(one), one, int64(one/2), one/2))
}

func TestLedgerServesAPodWholeOrNotAtAll(t *testing.T) {
	b := newBooks(t, reported("node-1", 2*one), reported("node-2", 3*one))
	three := []provision.Want{want("a", volume.GiB), want("b", volume.GiB), want("c", volume.GiB-volume.Block)}
	err := b.reserve("node-1", three...)
	require.ErrorContains(t, err, `node "node-1" has no room for the claims claim-a, claim-b, claim-c together, which are used by one pod`)
	require.Equal(t, 2*one, b.room("node-1"), "nothing is kept")
	require.Equal(t, []string{"node-1"}, b.said())

	// The scheduler, which looks at one claim after the other, is kept from coming back.
	offer, _ := b.Offer("node-1", provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
	require.Equal(t, volume.GiB-volume.Block, offer.Most)
	b.now = b.now.Add(2 * time.Minute)
	offer, _ = b.Offer("node-1", provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
	require.Greater(t, offer.Most, volume.GiB, "but others not for ever")

	require.Error(t, b.reserve("node-1", three...))
	b.Report(reported("node-1", 4*one))
	offer, _ = b.Offer("node-1", provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
	require.Greater(t, offer.Most, volume.GiB, "and not once there may be room")

	require.NoError(t, b.reserve("node-2", three...))
	require.Less(t, b.room("node-2"), 8*volume.MiB)
	// Its companions come one after the other, and find what is kept for them.
	b.Written(written("node-2", three[0]))
	require.NoError(t, b.reserve("node-2", three[1], three[0], three[2]))
	require.Less(t, b.room("node-2"), 8*volume.MiB)
	require.Error(t, b.reserve("node-2", want("d", volume.GiB)))
}

// A companion that has its PersistentVolume keeps its room: the others of its pod
// must not be promised that.
func TestLedgerCountsACompanionThatIsWritten(t *testing.T) {
	b := newBooks(t, reported("node-1", 2*one+one/2))
	b.Written(written("node-1", want("a", volume.GiB)))
	b.Written(written("node-1", want("other", volume.GiB)))
	require.ErrorContains(t, b.reserve("node-1", want("b", volume.GiB), want("a", volume.GiB)), "has no room")
	require.Equal(t, one/2, b.room("node-1"))
}

func TestLedgerReservationsMoveAndLapse(t *testing.T) {
	b := newBooks(t, reported("node-1", 2*one), reported("node-2", 2*one))
	require.NoError(t, b.reserve("node-1", want("a", volume.GiB), want("b", volume.GiB)))
	require.Zero(t, b.room("node-1"))
	require.NoError(t, b.reserve("node-2", want("b", volume.GiB)), "the scheduler chose again")
	require.Equal(t, one, b.room("node-1"))
	require.Equal(t, one, b.room("node-2"))

	require.NoError(t, b.reserve("node-1", want("a", volume.GiB), want("c", volume.GiB)))
	b.now = b.now.Add(61 * time.Second)
	require.Equal(t, one, b.room("node-1"), "a companion whose turn never came")
	b.now = b.now.Add(5 * time.Minute)
	require.Equal(t, 2*one, b.room("node-1"), "a write that never was")
	b.Written(written("node-1", want("a", volume.GiB)))
	require.Equal(t, one, b.room("node-1"), "or came late")
}

// A new leader whose watch begins with an older state than the last leader left.
func TestLedgerInheritsWhatItsWatchDoesNotShowYet(t *testing.T) {
	b := newBooks(t, reported("node-1", 2*one))
	b.Inherited(written("node-1", want("a", volume.GiB)))
	require.Equal(t, one, b.room("node-1"))
	b.Written(written("node-1", want("a", volume.GiB)))
	b.Inherited(written("node-1", want("a", volume.GiB)))
	require.Equal(t, one, b.room("node-1"))
	b.Inherited(written("node-1", want("gone", volume.GiB)))
	require.Zero(t, b.room("node-1"))
	b.now = b.now.Add(6 * time.Minute)
	require.Equal(t, one, b.room("node-1"), "deleted before the watch began")
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
		"its charge":                {taken: one},
		"released":                  {change: func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased }, taken: one},
		"of another group":          {change: options(volume.OptionGroup, "other")},
		"of a group replaced":       {change: options(volume.OptionGroupUUID, "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S")},
		"of any group of that name": {change: func(v *corev1.PersistentVolume) { delete(v.Spec.FlexVolume.Options, volume.OptionGroupUUID) }, taken: one},
		"nonsense":                  {change: options(volume.OptionSize, "much")},
		"without a node":            {change: func(v *corev1.PersistentVolume) { v.Labels = nil }},
		"of another driver":         {change: func(v *corev1.PersistentVolume) { v.Spec.FlexVolume.Driver = "example.com/other" }},
		"grown": {change: func(v *corev1.PersistentVolume) {
			v.Spec.Capacity[corev1.ResourceStorage] = quantity(2 * volume.GiB)
		}, taken: volume.DeviceSize(2*volume.GiB, 0)},
		"large extents": {pool: func(p *flexlvmv1.Pool) { p.ExtentSize = quantity(volume.GiB) }, taken: 2 * volume.GiB},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.pool == nil {
				tt.pool = func(*flexlvmv1.Pool) {}
			}
			if tt.change == nil {
				tt.change = func(*corev1.PersistentVolume) {}
			}
			b := newBooks(t, reported("node-1", 10*volume.GiB, tt.pool))
			b.Written(written("node-1", want("a", volume.GiB), tt.change))
			require.Equal(t, (10*volume.GiB - tt.taken).String(), b.room("node-1").String())
			b.Written(written("node-1", want("a", volume.GiB), options(volume.OptionGroup, "other")))
			require.Equal(t, 10*volume.GiB, b.room("node-1"), "changed")
		})
	}
}

func TestLedgerRefusesWithAReason(t *testing.T) {
	ailing := reported("node-4", 10*one)
	ailing.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: flexlvmv1.ReasonToolsMissing, Message: "the host lacks mkfs.xfs"}}
	blocked := reported("node-5", 10*one)
	blocked.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: "EvictionBlocked", Message: "nothing is evicted"}}
	b := newBooks(t,
		reported("node-1", 10*one, func(p *flexlvmv1.Pool) { p.Name = "data" }),
		reported("node-2", 10*one, func(p *flexlvmv1.Pool) { p.Closed = "LVM cannot find 1 device" }),
		&flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "node-3"}}, ailing, blocked,
	)
	for node, reason := range map[string]string{
		"node-1": `has no volume group "flexlvm"; it has data`,
		"node-2": `takes no new volumes in volume group "flexlvm": LVM cannot find 1 device`,
		"node-3": `has no volume group "flexlvm"; it has none`,
		"node-4": `takes no new volumes in volume group "flexlvm": the host lacks mkfs.xfs`,
		"node-9": "has not reported its volume groups; look at `kubectl get nodestorages`",
	} {
		err := b.reserve(node, want("a", volume.GiB))
		require.ErrorContains(t, err, reason)
		var none *provision.NoRoom
		require.ErrorAs(t, err, &none)
	}
	require.NoError(t, b.reserve("node-5", want("a", volume.GiB)))
	b.Forget("node-5")
	require.ErrorContains(t, b.reserve("node-5", want("b", volume.GiB)), "has not reported")
	require.NotContains(t, b.Nodes(), "node-5")
}

// What is offered can be reserved, to the byte, and not a block more.
func TestLedgerOffersWhatItCanReserve(t *testing.T) {
	for _, extent := range []volume.Bytes{4 * volume.MiB, 32 * volume.MiB, volume.GiB} {
		for _, allocatable := range []volume.Bytes{299 * volume.MiB, 300 * volume.MiB, volume.GiB + 12345, 100 * volume.GiB, 9 * volume.TiB} {
			b := newBooks(t, reported("node-1", allocatable, func(p *flexlvmv1.Pool) { p.ExtentSize = quantity(extent) }))
			offer, has := b.Offer("node-1", provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
			require.True(t, has)
			if offer.Most > 0 {
				require.NoError(t, b.reserve("node-1", want("a", offer.Most)), "%s of %s in %s", offer.Most, allocatable, extent)
			}
			require.Error(t, b.reserve("node-1", want("a", offer.Most+volume.Block)), "%s of %s in %s", offer.Most, allocatable, extent)
		}
	}
	b := newBooks(t, reported("node-1", one))
	_, has := b.Offer("node-1", provision.Parameters{Spec: volume.Spec{Group: "other"}})
	require.False(t, has, "nodes without the pool offer nothing")
	_, has = b.Offer("node-2", provision.Parameters{Spec: volume.Spec{Group: "flexlvm"}})
	require.False(t, has)
}

func TestLedgerKnowsLongNames(t *testing.T) {
	b := newBooks(t, reported(longName, 2*one))
	b.Written(written(longName, want("a", volume.GiB)))
	require.Equal(t, one, b.room(longName))
	require.Equal(t, []string{pv.NodeLabelValue(longName)}, b.said())
}

// Layouts that need several physical devices go by what is free on each.
func TestLedgerLayouts(t *testing.T) {
	devices := func(free ...volume.Bytes) func(*flexlvmv1.Pool) {
		return func(p *flexlvmv1.Pool) {
			for _, f := range free {
				p.DeviceFree = append(p.DeviceFree, quantity(f))
			}
		}
	}
	reclaimable := func(b volume.Bytes) func(*flexlvmv1.Pool) {
		return func(p *flexlvmv1.Pool) { p.Reclaimable = quantity(b) }
	}
	mirrored := func(name string, size volume.Bytes) provision.Want {
		w := want(name, size)
		w.Spec.Layout = volume.Raid1
		return w
	}
	raid1 := provision.Parameters{Spec: volume.Spec{Group: "flexlvm", Layout: volume.Raid1}}
	leg := one + volume.DefaultExtent // with RAID's own metadata

	t.Run("its true cost", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 10*leg, devices(5*leg, 5*leg)))
		require.NoError(t, b.reserve("node-1", mirrored("a", volume.GiB)))
		require.Equal(t, 8*leg, b.room("node-1"))
		b.Written(written("node-1", mirrored("a", volume.GiB)))
		require.Equal(t, 8*leg, b.room("node-1"))
	})
	t.Run("distinct devices", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 11*leg, devices(10*leg, leg/2)))
		require.ErrorContains(t, b.reserve("node-1", mirrored("a", volume.GiB)),
			`has no room for it: layout raid1 needs `+fmt.Sprint(int64(leg))+` bytes (1.12 GiB) on each of 2 devices, and volume group "flexlvm", of 2 devices, has not so much free on as many`)
		require.NoError(t, b.reserve("node-1", want("a", volume.GiB)))
	})
	t.Run("offers what it can reserve", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 12*leg, devices(7*leg, 3*leg, 2*leg)))
		offer, has := b.Offer("node-1", raid1)
		require.True(t, has)
		require.NoError(t, b.reserve("node-1", mirrored("a", offer.Most)))
		b = newBooks(t, reported("node-1", 12*leg, devices(7*leg, 3*leg, 2*leg)))
		require.Error(t, b.reserve("node-1", mirrored("a", offer.Most+volume.Block)))
	})
	t.Run("what is promised may come to lie anywhere", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 6*leg, devices(3*leg, 3*leg)))
		require.NoError(t, b.reserve("node-1", want("a", volume.GiB), want("b", volume.GiB)))
		require.Error(t, b.reserve("node-1", mirrored("c", 2*volume.GiB)))
		require.NoError(t, b.reserve("node-1", mirrored("c", volume.GiB-64*volume.MiB)))
	})
	t.Run("of a pod together", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 6*leg, devices(3*leg, 3*leg)))
		three := []provision.Want{mirrored("a", volume.GiB), mirrored("b", volume.GiB), mirrored("c", volume.GiB)}
		require.NoError(t, b.reserve("node-1", three...))
		b = newBooks(t, reported("node-1", 6*leg, devices(4*leg, 2*leg)))
		require.ErrorContains(t, b.reserve("node-1", three...), "on each of 2 devices")
		require.Equal(t, 6*leg, b.room("node-1"), "nothing is kept")
	})
	t.Run("what may be evicted lies nobody knows where", func(t *testing.T) {
		b := newBooks(t, reported("node-1", 6*leg, devices(leg, leg), reclaimable(4*leg)))
		require.Error(t, b.reserve("node-1", mirrored("a", 2*volume.GiB)))
		require.NoError(t, b.reserve("node-1", mirrored("a", volume.GiB)))
		require.NoError(t, b.reserve("node-1", want("b", 3*volume.GiB)))
	})
}
