package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/diskid"
)

// Groups wait for the first scan for a limited time. After that they report that no scan has run.
func TestFirstScanIsNotWaitedForForever(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	s := &discoverer{d: &Daemon{cfg: Config{Now: func() time.Time { return now }}}, begun: now}
	require.False(t, s.firstScanOver())
	now = now.Add(firstScanTimeout + time.Second)
	require.True(t, s.firstScanOver())
	require.Equal(t, "the node daemon has not examined the disks yet", s.disksSeen().Unknown)
}

// A loop device's ID is unique on one machine: a PersistentVolume of this node has the disk, also before the watch shows it,
// and one of another node has not.
func TestHolderOfALoopDevice(t *testing.T) {
	loop := diskid.Names{ID: "loop-/srv/disk.img"}
	h := &holders{all: []holder{{name: "static-a", node: "node-1", disk: loop}}}
	require.Equal(t, "static-a", h.of(loop, "node-1").name)
	require.Nil(t, h.of(loop, "node-2"))
}
