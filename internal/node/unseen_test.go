package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestUnseenGroupsOf(t *testing.T) {
	e, _, _ := batchOfTwo(t, func(*fakeGroup) {}) // LVM shows the group flexlvm
	none, err := e.UnseenGroupsOf(t.Context(), "pvc-1")
	require.NoError(t, err)
	require.Empty(t, none)
	for _, g := range []volume.Group{"flexlvm", "fast", "other"} {
		require.NoError(t, e.records.write(g, "pvc-1", newRecord("uuid", sourceTags())))
	}
	require.NoError(t, e.records.writeEmpty("torn", "pvc-1"))
	require.NoError(t, e.records.writeTombstone("removed", "pvc-1", volume.Claim, e.now()))
	require.NoError(t, e.records.write("fast", "pvc-2", newRecord("uuid-2", sourceTags())))
	unseen, err := e.UnseenGroupsOf(t.Context(), "pvc-1")
	require.NoError(t, err)
	require.Equal(t, []volume.Group{"fast", "other", "torn"}, unseen)
}
