package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestGroupUUIDs(t *testing.T) {
	b := ledgertest.New(t, ledgertest.ThinReport("node-1", ledgertest.OneGiB))
	require.Equal(t, map[volume.PoolName]string{"flexlvm": ledgertest.GroupUUID, "flexlvm/thinpool": ledgertest.GroupUUID}, b.GroupUUIDs("node-1"))
	require.Empty(t, b.GroupUUIDs("node-2"), "it has not reported")
}
