package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
