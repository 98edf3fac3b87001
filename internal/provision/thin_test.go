package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// thinNode has a volume group of which so much may be taken, and a thin pool in it
// with as much again.
func thinNode(node string, allocatable volume.Bytes, change ...func(*flexlvmv1.Pool)) *flexlvmv1.NodeStorage {
	report := reported(node, allocatable)
	p := report.Status.Pools[0]
	p.Name, p.UUID, p.Layout = "flexlvm/thinpool", "of-the-pool", "thin"
	for _, c := range change {
		c(&p)
	}
	report.Status.Pools = append(report.Status.Pools, p)
	return report
}

func thinWant(name string, size volume.Bytes, ratio volume.Ratio) provision.Want {
	w := want(name, size)
	w.Spec.Layout, w.Spec.ThinPool, w.Spec.Ratio = volume.Thin, "thinpool", ratio
	return w
}

var thinClass = provision.Parameters{Spec: volume.Spec{Group: "flexlvm", Layout: volume.Thin, ThinPool: "thinpool"}}

func TestLedgerKeepsThinPoolsApart(t *testing.T) {
	b := newBooks(t, thinNode("node-1", 10*one), reported("node-2", 10*one))
	uuids, err := b.Reserve("node-1", []provision.Want{thinWant("a", volume.GiB, 0), want("b", volume.GiB)})
	require.NoError(t, err)
	require.Equal(t, map[volume.PoolName]string{"flexlvm": groupUUID, "flexlvm/thinpool": groupUUID}, uuids, "a volume is tied to its group")
	require.Equal(t, 9*one, b.room("node-1"))
	offer, has := b.Offer("node-1", thinClass)
	require.True(t, has)
	require.Equal(t, 9*one, offer.Room)

	_, has = b.Offer("node-2", thinClass)
	require.False(t, has, "nodes without the pool publish nothing for it")
	_, err = b.Reserve("node-2", []provision.Want{thinWant("c", volume.GiB, 0)})
	require.ErrorContains(t, err, `has no thin pool "flexlvm/thinpool"; it has flexlvm`)
}

// At ratio 1 never more is promised than there is; above, so much more.
func TestLedgerRatio(t *testing.T) {
	for ratio, fit := range map[volume.Ratio]int{0: 4, 1000: 4, 1500: 6, 2000: 8} {
		b := newBooks(t, thinNode("node-1", 4*one))
		for i := range fit {
			name := string(rune('a' + i))
			_, err := b.Reserve("node-1", []provision.Want{thinWant(name, volume.GiB, ratio)})
			require.NoError(t, err, "%s: volume %d", ratio, i)
			b.Written(thinVolume(t, thinWant(name, volume.GiB, ratio)))
		}
		_, err := b.Reserve("node-1", []provision.Want{thinWant("z", volume.GiB, ratio)})
		require.ErrorContains(t, err, `and thin pool "flexlvm/thinpool" can still promise`, "%s", ratio)
	}
}

// thinVolume is the PersistentVolume of a want on node-1.
func thinVolume(t *testing.T, w provision.Want) *corev1.PersistentVolume {
	t.Helper()
	parameters := thinClass
	parameters.Ratio = w.Spec.Ratio
	spec := w.Spec
	spec.GroupUUID = groupUUID
	request := provision.Request{PVName: w.PV, Claim: claimOf(w), Class: class(nil), Cluster: clusterUID}
	return request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "node-1"})
}

func claimOf(w provision.Want) *corev1.PersistentVolumeClaim {
	return claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = quantity(w.Spec.Size)
	})
}

func TestThinPersistentVolume(t *testing.T) {
	object := thinVolume(t, thinWant("a", volume.GiB, 2000))
	require.Equal(t, "2", object.Annotations[pv.AnnotationRatio])
	require.Equal(t, "thinpool", object.Spec.FlexVolume.Options[volume.OptionThinPool])
	require.NotContains(t, object.Spec.FlexVolume.Options, "overprovisionRatio")
	c, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.PoolName("flexlvm/thinpool"), c.Pool())
	require.Equal(t, (one+1)/2, c.Charged)

	// Grown, its charge grows by the same ratio.
	object.Spec.Capacity[corev1.ResourceStorage] = quantity(4 * volume.GiB)
	c, err = persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.DeviceSize(4*volume.GiB, 0)/2, c.Charged)

	object.Annotations[pv.AnnotationRatio] = "0"
	_, err = persistentvolume.Parse(object)
	require.ErrorContains(t, err, pv.AnnotationRatio)
	require.NotContains(t, thinVolume(t, thinWant("a", volume.GiB, 1000)).Annotations, pv.AnnotationRatio)
}

// A pool over its watermark is offered to nobody.
func TestLedgerClosedThinPool(t *testing.T) {
	b := newBooks(t, thinNode("node-1", 4*one, func(p *flexlvmv1.Pool) { p.Closed = "thin pool flexlvm/thinpool is 83% full" }))
	offer, has := b.Offer("node-1", thinClass)
	require.True(t, has)
	require.Zero(t, offer.Most)
	_, err := b.Reserve("node-1", []provision.Want{thinWant("a", volume.GiB, 0)})
	require.ErrorContains(t, err, `takes no new volumes in thin pool "flexlvm/thinpool": thin pool flexlvm/thinpool is 83% full`)
	require.Equal(t, 4*one, b.room("node-1"), "its group goes on")
}
