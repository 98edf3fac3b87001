package node

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Only the requested disk can recreate a lost group: if it cannot be used, other disks are not touched, now
// or later.
func TestLostGroupIsNotMadeOfOthersThanAsked(t *testing.T) {
	h := newHost(t, 1)
	d := declared("/dev/sd*")
	h.run(0, d)
	require.Len(t, h.groups, 1)
	h.all = slices.Delete(h.all, 0, 1) // its disk is missing
	clear(h.groups)
	h.plug("/dev/sdc")
	h.plug("/dev/sdd")
	h.disk("/dev/sdc").data = true
	h.touched = nil
	d.ReuseDisks = []string{"serial-sdc"} // which is not blank
	for _, die := range []int{2, 0} {
		h.run(die, d)
		l, err := h.readLedger()
		require.NoError(t, err)
		require.Equal(t, "vg-1", l.Groups["fast"].UUID)
	}
	h.run(0, declared("/dev/sd*"))
	require.Empty(t, h.touched)

	h.disk("/dev/sdc").data = false
	h.run(0, d)
	require.Len(t, h.groups, 1, "once it is blank the group is made")
}
