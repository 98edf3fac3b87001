package nodeagent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Groups wait for the first scan for a limited time. After that they report that no scan has run.
func TestFirstLookIsNotWaitedForForever(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	s := &discoverer{d: &Daemon{cfg: Config{Now: func() time.Time { return now }}}, begun: now}
	require.False(t, s.hasScanned())
	now = now.Add(firstScanTimeout + time.Second)
	require.True(t, s.hasScanned())
	require.Equal(t, "the node daemon has not examined the disks yet", s.disksSeen().Unknown)
}
