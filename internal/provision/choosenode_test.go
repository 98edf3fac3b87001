package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
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
