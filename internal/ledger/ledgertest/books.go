// Package ledgertest makes ledgers for tests.
package ledgertest

import (
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
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Cluster is whose volumes are promised.
const Cluster = "7f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

// GroupUUID is that of every volume group here.
const GroupUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"

// LongName has more characters than a label may have.
var LongName = strings.Repeat("n", 60) + ".example.org"

// OneGiB is what a volume of 1 GiB takes of its pool.
var OneGiB = volume.XFSDeviceSize(volume.GiB, 0)

// Quantity is b as the API has it.
func Quantity(b volume.Bytes) resource.Quantity {
	return *resource.NewQuantity(int64(b), resource.BinarySI)
}

// Report is a node with a pool in which PersistentVolumes may take so much.
func Report(node string, allocatable volume.Bytes, change ...func(*flexlvmv1.Pool)) *flexlvmv1.NodeStorage {
	p := flexlvmv1.Pool{
		Name: "flexlvm", UUID: GroupUUID, Layout: "linear", Size: Quantity(100 * allocatable),
		Allocatable: Quantity(allocatable), ExtentSize: Quantity(4 * volume.MiB),
	}
	for _, c := range change {
		c(&p)
	}
	return &flexlvmv1.NodeStorage{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("report-of-" + node)},
		Status:     flexlvmv1.NodeStorageStatus{Pools: []flexlvmv1.Pool{p}},
	}
}

// Books is a ledger with a clock, and what it has said of changes.
type Books struct {
	*ledger.Ledger
	t       *testing.T
	Now     time.Time
	mu      sync.Mutex
	changed []string
}

// New makes a ledger that has taken the reports.
func New(t *testing.T, reports ...*flexlvmv1.NodeStorage) *Books {
	b := &Books{t: t, Now: time.Unix(1000, 0)}
	b.Ledger = ledger.New(func() time.Time { return b.Now }, func(node string) {
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

// Left ends PersistentVolumes as their node does, which has published this report before.
func (b *Books) Left(report *flexlvmv1.NodeStorage, names ...string) {
	for _, name := range names {
		b.Gone(name)
	}
	_, at, ask := b.Unconfirmed(pv.NodeLabelValue(report.Name))
	require.True(b.t, ask)
	b.Confirm(report, at)
}

// Changes gives what has changed since it was last asked.
func (b *Books) Changes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.changed
	b.changed = nil
	slices.Sort(out)
	return slices.Compact(out)
}

// Room is what a node can still promise.
func (b *Books) Room(node string) volume.Bytes {
	offer, has := b.Offer(node, volume.Spec{Group: "flexlvm"})
	require.True(b.t, has, node)
	return offer.Room
}

// Want is a volume of that name and size in the group flexlvm.
func Want(name string, size volume.Bytes) ledger.Want {
	return ledger.Want{PV: name, Claim: "claim-" + name, Spec: volume.Spec{
		Group: "flexlvm", Name: volume.Name(name), Size: size, Layout: volume.Linear, Kind: volume.Claim, Cluster: Cluster,
	}}
}

// Take reserves room for volumes on a node.
func (b *Books) Take(node string, wants ...ledger.Want) error {
	uuids, err := b.Reserve(node, wants)
	if err == nil {
		require.Equal(b.t, map[volume.PoolName]string{"flexlvm": GroupUUID}, uuids)
	}
	return err
}

// PersistentVolume is the PersistentVolume of a want.
func PersistentVolume(node string, w ledger.Want, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	spec := w.Spec
	spec.GroupUUID = GroupUUID
	object := persistentvolume.New(pv.Description{
		Name: w.PV, Node: node, Hostname: node, Spec: spec, Charged: spec.Charge(),
		Disposal: volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}, OnNodeLoss: volume.OnNodeLossKeep,
	}, nil, corev1.PersistentVolumeReclaimDelete)
	for _, f := range change {
		f(object)
	}
	return object
}

// ThinReport has a volume group of which so much may be taken, and a thin pool in it
// with as much again.
func ThinReport(node string, allocatable volume.Bytes, change ...func(*flexlvmv1.Pool)) *flexlvmv1.NodeStorage {
	report := Report(node, allocatable)
	p := report.Status.Pools[0]
	p.Name, p.UUID, p.Layout = "flexlvm/thinpool", "of-the-pool", "thin"
	for _, c := range change {
		c(&p)
	}
	report.Status.Pools = append(report.Status.Pools, p)
	return report
}

// ThinWant is one in a thin pool of that ratio.
func ThinWant(name string, size volume.Bytes, ratio volume.Ratio) ledger.Want {
	w := Want(name, size)
	w.Spec.Layout, w.Spec.ThinPool, w.Spec.Ratio = volume.Thin, "thinpool", ratio
	return w
}

// ThinClass is the class of volumes in that pool.
var ThinClass = volume.Spec{Group: "flexlvm", Layout: volume.Thin, ThinPool: "thinpool"}
