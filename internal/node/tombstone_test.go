package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A tombstone keeps late calls out for an hour, also where the clock was ahead when it
// was made: then from the moment when it is first seen to be.
func TestTombstones(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return now }}, noPrograms(t))
	require.NoError(t, err)
	const g = volume.Group("flexlvm")
	e.sweep(g, "none") // no directory yet
	require.NoError(t, e.records.write(g, "data", newRecord("some-uuid", sourceTags())))
	for name, at := range map[volume.Name]time.Time{
		"old": now.Add(-2 * time.Hour), "held": now.Add(-2 * time.Hour), "locked": now.Add(-2 * time.Hour), "young": now.Add(-time.Minute),
		"ahead": now.AddDate(73, 0, 0), "held-ahead": now.AddDate(73, 0, 0),
	} {
		require.NoError(t, e.records.bury(g, name, at))
	}
	unlock, err := e.lockVolume(t.Context(), g, "locked")
	require.NoError(t, err)
	defer unlock()
	standing := func() (all []volume.Name) {
		for _, n := range []volume.Name{"ahead", "held", "held-ahead", "locked", "old", "young"} {
			if there, err := e.records.exists(g, n); err == nil && there {
				all = append(all, n)
			}
		}
		return all
	}
	sweep := func() {
		for _, held := range []volume.Name{"held", "held-ahead"} {
			release, err := e.lockVolume(t.Context(), g, held) // as who calls sweep does
			require.NoError(t, err)
			e.sweep(g, held)
			release()
		}
	}
	sweep()
	require.Equal(t, []volume.Name{"ahead", "held-ahead", "locked", "young"}, standing())
	now = now.Add(tombstoneLife)
	sweep()
	require.Equal(t, []volume.Name{"ahead", "held-ahead", "locked"}, standing(), "for an hour from when they were seen")
	_, ok := e.records.buried(g, "ahead", now)
	require.True(t, ok)
	now = now.Add(time.Second)
	sweep()
	require.Equal(t, []volume.Name{"locked"}, standing(), "somebody works on that one")
	there, err := e.records.exists(g, "data")
	require.NoError(t, err)
	require.True(t, there)
}
