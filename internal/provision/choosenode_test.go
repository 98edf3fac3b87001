package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The error for a claim with immediate binding gives the reason why no node can take it.
func TestProvisionSaysWhyNoNodeIsChosen(t *testing.T) {
	c := newCast(t)
	o := options("")
	o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
	c.nodes = []*corev1.Node{node("node-1", map[string]string{corev1.LabelHostname: "node-1"})}
	c.ledger = ledgertest.New(t).Ledger
	_, _, err := c.provisioner(t).Provision(t.Context(), o)
	require.ErrorContains(t, err, "no node has reported its volume groups")
	c.ledger.Report(ledgertest.Report("node-1", 10*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Closed = "a device is missing" }))
	_, _, err = c.provisioner(t).Provision(t.Context(), o)
	require.ErrorContains(t, err, `none can give any, and node "node-1" takes no new volumes in volume group "flexlvm": a device is missing; it is retried`)
}

// A node that offers less for a while, so that the scheduler sends a pod with two large claims elsewhere, still serves
// claims that bind immediately.
func TestProvisionAtOnceWhereTheSchedulerIsKeptAway(t *testing.T) {
	c := newCast(t)
	o := options("")
	o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
	c.nodes = c.nodes[:1]
	b := ledgertest.New(t, ledgertest.Report("node-1", ledgertest.OneGiB))
	c.ledger = b.Ledger
	require.Error(t, b.Take("node-1", ledgertest.Want("a", volume.GiB), ledgertest.Want("b", volume.GiB)))
	offer, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Less(t, offer.MaxVolumeSize, volume.GiB)
	object, _, err := c.provisioner(t).Provision(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, "node-1", object.Labels[pv.LabelNode])
}

// A raw block volume needs no room for a file system.
func TestProvisionABlockVolumeAtOnce(t *testing.T) {
	c := newCast(t)
	o := options("")
	o.StorageClass = class(func(c *storagev1.StorageClass) {
		c.Parameters, c.VolumeBindingMode = map[string]string{"door": "csi"}, ptr(storagev1.VolumeBindingImmediate)
	})
	asBlock(o.PVC)
	c.nodes = c.nodes[:1]
	c.ledger = ledgertest.New(t, ledgertest.Report("node-1", volume.GiB)).Ledger
	_, _, err := c.provisioner(t).Provision(t.Context(), o)
	require.NoError(t, err)

	sized("1028Mi")(o.PVC)
	c.ledger = ledgertest.New(t, ledgertest.Report("node-1", volume.GiB)).Ledger
	_, _, err = c.provisioner(t).Provision(t.Context(), o)
	require.ErrorContains(t, err, "the most that any of 1 node with volume group \"flexlvm\" can give is 1073741824 bytes (1 GiB)")
}

// The result of the first attempt at a claim with immediate binding is unknown. The next attempt is for the same node,
// although another one has more room now: the claim's room is not reserved on one node after the other.
func TestProvisionStaysOnTheNodeOfItsFirstAttempt(t *testing.T) {
	c := newCast(t)
	o := options("")
	o.StorageClass.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate)
	c.nodes = nil
	for _, name := range []string{"node-1", "node-2"} {
		c.nodes = append(c.nodes, node(name, map[string]string{corev1.LabelHostname: name}))
	}
	second := ledgertest.Report("node-2", 9*ledgertest.OneGiB+ledgertest.OneGiB/2)
	c.ledger = ledgertest.New(t, ledgertest.Report("node-1", 10*ledgertest.OneGiB), second).Ledger
	for range 3 {
		object, _, err := c.provisioner(t).Provision(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, "node-1", object.Labels[pv.LabelNode])
	}
	c.ledger.Report(ledgertest.Report("node-1", 10*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Closed = "a device is missing" }))
	object, _, err := c.provisioner(t).Provision(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, "node-2", object.Labels[pv.LabelNode])
}
