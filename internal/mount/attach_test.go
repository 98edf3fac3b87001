package mount

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A device that the kernel counts as frozen is held by no program: the error says how to make it usable again.
func TestWhatHoldsABusyDevice(t *testing.T) {
	frozen := heldBy(" (dm-3: Can't mount, blockdev is frozen)")
	require.Contains(t, frozen, "taken while `fsfreeze` had frozen its file system")
	require.Contains(t, frozen, "lvchange --activate n GROUP/NAME")
	require.NotContains(t, frozen, "another program")
	require.Equal(t, "a formatter or another program holds the device", heldBy("; see the kernel's log"))
	require.Equal(t, "a formatter or another program holds the device", heldBy(" (/dev/dm-3: Can't open blockdev)"))
}
