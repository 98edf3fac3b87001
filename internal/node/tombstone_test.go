package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A tombstone keeps out late calls for an hour. If the clock was ahead when it was created, the hour begins
// when that is first noticed.
func TestTombstones(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return now }}, noPrograms(t))
	require.NoError(t, err)
	const g = volume.Group("flexlvm")
	e.expireTombstones(g, "none") // no directory yet
	require.NoError(t, e.records.write(g, "data", newRecord("some-uuid", sourceTags())))
	for name, at := range map[volume.Name]time.Time{
		"old": now.Add(-2 * time.Hour), "held": now.Add(-2 * time.Hour), "locked": now.Add(-2 * time.Hour), "young": now.Add(-time.Minute),
		"ahead": now.AddDate(73, 0, 0), "held-ahead": now.AddDate(73, 0, 0),
	} {
		require.NoError(t, e.records.writeTombstone(g, name, volume.Claim, at))
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
	expire := func() {
		for _, held := range []volume.Name{"held", "held-ahead"} {
			release, err := e.lockVolume(t.Context(), g, held) // as callers of expireTombstones do
			require.NoError(t, err)
			e.expireTombstones(g, held)
			release()
		}
	}
	expire()
	require.Equal(t, []volume.Name{"ahead", "held-ahead", "locked", "young"}, standing())
	now = now.Add(tombstoneLife)
	expire()
	require.Equal(t, []volume.Name{"ahead", "held-ahead", "locked"}, standing(), "for an hour from when they were seen")
	_, ok := e.records.blockedByTombstone(g, "ahead", now)
	require.True(t, ok)
	now = now.Add(time.Second)
	expire()
	require.Equal(t, []volume.Name{"locked"}, standing(), "somebody works on that one")
	there, err := e.records.exists(g, "data")
	require.NoError(t, err)
	require.True(t, there)
}

// The tombstone of a replica keeps out calls that began before it, and no others.
func TestTombstoneOfAReplica(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return now }}, noPrograms(t))
	require.NoError(t, err)
	spec := readerSpec()
	spec.ReadOnly = false
	served := func() bool {
		served, err := e.records.hasRecordOf(spec.Group, spec.Name)
		require.NoError(t, err)
		return served
	}
	require.False(t, served())
	require.Zero(t, e.givenUpAt(spec))
	ref := Ref{Group: spec.Group, Name: spec.Name, Kind: volume.Dataset}
	require.NoError(t, e.recordTombstone(ref, ref.Kind))
	require.False(t, served())
	require.Equal(t, now, e.givenUpAt(spec))
	_, ok := e.records.blockedByTombstone(spec.Group, spec.Name, now)
	require.False(t, ok)
	now = now.Add(time.Minute)
	require.NoError(t, e.recordTombstone(ref, ref.Kind))
	require.Equal(t, now, e.givenUpAt(spec))
	require.Zero(t, e.givenUpAt(readerSpec()), "a reader makes nothing")

	require.NoError(t, e.records.write(spec.Group, spec.Name, newRecord("uuid", replicaTags())))
	require.True(t, served())
	require.Zero(t, e.givenUpAt(spec))
	require.NoError(t, os.WriteFile(e.records.file(spec.Group, spec.Name), []byte("{"), 0o600))
	require.True(t, served(), "a record that is torn")

	require.NoError(t, e.recordTombstone(ref, ref.Kind))
	now = now.Add(tombstoneLife + time.Second)
	e.expireTombstones(spec.Group, "none")
	there, err := e.records.exists(spec.Group, spec.Name)
	require.NoError(t, err)
	require.False(t, there)

	claim := Ref{Group: spec.Group, Name: "pvc-1", Kind: volume.Claim}
	require.NoError(t, e.recordTombstone(claim, claim.Kind))
	_, ok = e.records.blockedByTombstone(claim.Group, claim.Name, now)
	require.True(t, ok)
}

// A volume that a node has had is not created again, unless its name may be used again.
func TestServed(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	const g = volume.Group("flexlvm")
	now := time.Now()
	write := func(n volume.Name, r record) {
		require.NoError(t, e.records.write(g, n, r))
		require.NoError(t, os.Chtimes(e.records.file(g, n), now, now))
	}
	write("data", newRecord("some-uuid", sourceTags()))
	write("removed", record{State: volume.Doomed, Since: now, Kind: volume.Claim})
	write("removed-before", record{State: volume.Doomed, Since: now.Add(-2 * tombstoneLife), Kind: volume.Claim})
	write("ds-1", record{State: volume.Doomed, Since: now, Kind: volume.Dataset})
	write("snap-1", record{State: volume.Doomed, Since: now, Kind: volume.Snapshot})
	require.NoError(t, os.WriteFile(e.records.file(g, "unreadable"), []byte("{"), 0o600))
	require.NoError(t, os.Chtimes(e.records.file(g, "unreadable"), now, now))
	for name, had := range map[volume.Name]bool{"data": true, "removed": true, "removed-before": false, "unreadable": true, "ds-1": false, "snap-1": false, "none": false} {
		lastUsed, served, err := e.HadVolume(g, name)
		require.NoError(t, err)
		require.Equal(t, had, served, name)
		require.Equal(t, had, lastUsed.Equal(now), name)
	}
	file := e.records.file("file", "data")
	require.NoError(t, os.WriteFile(filepath.Dir(file), nil, 0o600)) // where the folder of a group should be
	_, _, err = e.HadVolume("file", "data")
	require.Error(t, err)
}

// The last use of a replica that is created again under its name is its creation, not the last use of the
// earlier one.
func TestRecordOfAReplicaMadeAgainBeginsNow(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	const g, n = volume.Group("flexlvm"), volume.Name("ds-1")
	long := time.Now().Add(-time.Hour)
	require.NoError(t, e.records.writeTombstone(g, n, volume.Dataset, long))
	require.NoError(t, os.Chtimes(e.records.file(g, n), long, long))
	began := time.Now()
	require.NoError(t, e.records.write(g, n, newRecord("some-uuid", sourceTags())))
	require.WithinDuration(t, began, e.records.lastUsed(g, n), time.Minute)
}

// The record of a doomed volume is removed with it. If the call that removed the volume was killed in
// between, a later removal of the same or another volume removes the record once LVM shows that the volume is
// gone.
func TestRecordsOfDoomedVolumesThatAreGone(t *testing.T) {
	const g = volume.Group("flexlvm")
	group := &fakeGroup{lvs: []fakeLV{{name: string(volume.Name("there").Doomed()), uuid: "uuid", attr: "-wi-a-----", size: "67108864"}}}
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(group.run)
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, host)
	require.NoError(t, err)
	for _, n := range []volume.Name{"again", "gone", "locked", "there"} {
		require.NoError(t, e.records.write(g, n.Doomed(), record{State: volume.Doomed, VolumeUUID: "uuid", Wiped: volume.GiB}))
	}
	unlock, err := e.lockVolume(t.Context(), g, volume.Name("locked").Doomed())
	require.NoError(t, err)
	require.NoError(t, e.Remove(t.Context(), Ref{Group: g, Name: "again"}))
	require.Equal(t, []volume.Name{"doomed_gone", "doomed_locked", "doomed_there"}, e.recordedNames(g))

	release := func() {
		require.NoError(t, e.Release(t.Context(), Ref{Group: g, Name: "other", Kind: volume.Claim}, volume.Unreferenced, volume.Disposal{}))
	}
	group.report = errors.New("no answer")
	e.removeRecordsOfGone(t.Context(), g)
	require.Equal(t, []volume.Name{"doomed_gone", "doomed_locked", "doomed_there"}, e.recordedNames(g))
	group.report = nil
	release()
	require.Equal(t, []volume.Name{"doomed_locked", "doomed_there", "other"}, e.recordedNames(g))
	unlock()
	release()
	require.Equal(t, []volume.Name{"doomed_there", "other"}, e.recordedNames(g))
}
