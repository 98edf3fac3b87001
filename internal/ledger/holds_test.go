package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestHolds(t *testing.T) {
	const gib = volume.GiB
	b := ledgertest.New(t, ledgertest.Report("node-1", gib, amounts(100*gib, 20*gib, 0, device(1)+20*gib)))
	large := bound(ledgertest.Want("a", gib), 7, grownTo(400*volume.TiB))
	b.Written(bound(ledgertest.Want("a", gib), 6))
	require.True(t, b.Holds(bound(ledgertest.Want("a", gib), 6)))
	b.Written(large)
	require.False(t, b.Holds(large))
	require.Equal(t, ledger.Granted, b.MayGrow(bound(ledgertest.Want("a", gib), 7), 2*gib).Outcome, "it is not in its own way")
	require.False(t, b.Holds(bound(ledgertest.Want("a", gib), 7, grownTo(600*volume.TiB))), "nor what cannot be read")
}

// From some moment of a release on, a node does not count the volume as allocatable. Until its PersistentVolume is gone
// and the report is confirmed, nothing more is promised, and no promise counts as too much.
func TestHoldsWhileAnotherVolumeIsReleased(t *testing.T) {
	const gib = volume.GiB
	b := ledgertest.New(t, ledgertest.Report("node-1", gib, amounts(100*gib, 0, 0, device(20)+device(70))))
	data, other := bound(ledgertest.Want("a", 10*gib), 1, grownTo(20*gib)), ledgertest.Want("b", 70*gib)
	b.Written(data)
	b.Written(bound(other, 2))
	require.True(t, b.Holds(data))
	b.Written(bound(other, 3, func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased }))
	report := ledgertest.Report("node-1", gib, amounts(100*gib, 0, 0, device(20)))
	b.Report(report)
	require.True(t, b.Holds(data))
	require.Zero(t, b.Room("node-1"))
	b.Gone("b")
	require.True(t, b.Holds(data))
	b.Left(report)
	require.True(t, b.Holds(data))
	b.Report(ledgertest.Report("node-1", gib, amounts(100*gib, 0, 0, device(15))))
	require.False(t, b.Holds(data), "it is really too much")
}
