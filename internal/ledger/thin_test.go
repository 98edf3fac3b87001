package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestLedgerKeepsThinPoolsApart(t *testing.T) {
	b := ledgertest.New(t, ledgertest.ThinReport("node-1", 10*ledgertest.OneGiB), ledgertest.Report("node-2", 10*ledgertest.OneGiB))
	uuids, err := b.Reserve("node-1", []ledger.Want{ledgertest.ThinWant("a", volume.GiB, 0), ledgertest.Want("b", volume.GiB)})
	require.NoError(t, err)
	require.Equal(t, map[volume.PoolName]string{"flexlvm": ledgertest.GroupUUID, "flexlvm/thinpool": ledgertest.GroupUUID}, uuids, "a volume is tied to its group")
	require.Equal(t, 9*ledgertest.OneGiB, b.Room("node-1"))
	offer, has := b.Offer("node-1", ledgertest.ThinClass)
	require.True(t, has)
	require.Equal(t, 9*ledgertest.OneGiB, offer.Room)

	_, has = b.Offer("node-2", ledgertest.ThinClass)
	require.False(t, has, "nodes without the pool publish nothing for it")
	_, err = b.Reserve("node-2", []ledger.Want{ledgertest.ThinWant("c", volume.GiB, 0)})
	require.ErrorContains(t, err, `has no thin pool "flexlvm/thinpool"; it has flexlvm`)
}

// At ratio 1 no more is promised than there is; above 1, that much more.
func TestLedgerRatio(t *testing.T) {
	for ratio, fit := range map[volume.Ratio]int{0: 4, 1000: 4, 1500: 6, 2000: 8} {
		b := ledgertest.New(t, ledgertest.ThinReport("node-1", 4*ledgertest.OneGiB))
		for i := range fit {
			name := string(rune('a' + i))
			_, err := b.Reserve("node-1", []ledger.Want{ledgertest.ThinWant(name, volume.GiB, ratio)})
			require.NoError(t, err, "%s: volume %d", ratio, i)
			b.Written(ledgertest.PersistentVolume("node-1", ledgertest.ThinWant(name, volume.GiB, ratio)))
		}
		_, err := b.Reserve("node-1", []ledger.Want{ledgertest.ThinWant("z", volume.GiB, ratio)})
		require.ErrorContains(t, err, `and thin pool "flexlvm/thinpool" can still promise`, "%s", ratio)
	}
}

// A closed pool, such as one over its watermark, offers nothing.
func TestLedgerClosedThinPool(t *testing.T) {
	b := ledgertest.New(t, ledgertest.ThinReport("node-1", 4*ledgertest.OneGiB, func(p *flexlvmv1.Pool) { p.Closed = "thin pool flexlvm/thinpool is 83% full" }))
	offer, has := b.Offer("node-1", ledgertest.ThinClass)
	require.True(t, has)
	require.Zero(t, offer.MaxVolumeSize)
	_, err := b.Reserve("node-1", []ledger.Want{ledgertest.ThinWant("a", volume.GiB, 0)})
	require.ErrorContains(t, err, `takes no new volumes in thin pool "flexlvm/thinpool": thin pool flexlvm/thinpool is 83% full`)
	require.Equal(t, 4*ledgertest.OneGiB, b.Room("node-1"), "its group goes on")
}
