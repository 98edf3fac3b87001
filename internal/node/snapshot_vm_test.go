//go:build vm

package node

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// snapshotOf returns the spec of a snapshot of s.
func (m *machine) snapshotOf(s volume.Spec, name string) volume.Spec {
	m.t.Helper()
	c := m.cloneOf(s, name, s.Size)
	c.Kind = volume.Snapshot
	return c
}

func (m *machine) requireSnapshot(s volume.Spec) {
	m.t.Helper()
	tags := tagsOf(m.t, s.Name)
	require.Equal(m.t, volume.Ready, tags.State)
	require.Equal(m.t, volume.Snapshot, tags.Kind)
	require.Empty(m.t, tags.Clone)
	d, err := lvm.FindDevice(group, s.Name)
	require.NoError(m.t, err)
	id, err := xfsKind{}.uuid(d.Path)
	require.NoError(m.t, err)
	require.Equal(m.t, tags.FS, id, "it stays what its source was")
}

// A snapshot of a volume that is being written to holds what was synced, whatever happens to its source, and
// can be restored any number of times, to its own size or a larger one.
func TestSnapshot(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 96*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 20*volume.MiB)
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	writes(&wg, from, stop)
	snap := m.snapshotOf(s, "snap")
	began := time.Now().Truncate(time.Second)
	made, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
	require.NoError(t, err)
	t.Logf("the snapshot of a volume that is being written to took %s", time.Since(began))
	close(stop)
	wg.Wait()
	m.requireSnapshot(snap)
	require.Equal(t, s.Size, made.Size)
	require.WithinRange(t, made.Created, began, time.Now(), "the moment that it is of")

	require.NoError(t, os.Remove(from+"/kept"))
	again, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
	require.NoError(t, err)
	require.Equal(t, []any{made.UUID, made.Created}, []any{again.UUID, again.Created}, "it is taken once")
	require.ErrorIs(t, m.Mount(m.ctx(), snap, MountRequest{Target: m.target("s"), ReadOnly: true}), ErrRefused)
	claim := snap
	claim.Kind, claim.CloneOf = volume.Claim, ""
	require.ErrorContains(t, m.Mount(m.ctx(), claim, MountRequest{Target: m.target("s"), ReadOnly: true}), "never mounted")

	// The source is removed, and a second snapshot, in any order.
	second := m.snapshotOf(s, "second")
	second.Size = 100 * volume.GiB // the source waits for room to grow, and the pool has none
	_, err = m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: second}, stillWanted)
	require.NoError(t, err)
	m.unmount(from)
	for _, gone := range []volume.Spec{s, second} {
		require.NoError(t, m.Release(m.ctx(), refOf(gone), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeDiscard}))
		require.NoError(t, m.Remove(m.ctx(), refOf(gone)))
	}
	_, err = m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: second}, stillWanted)
	require.ErrorContains(t, err, "the source volume does not exist", "its name is free, and its source is gone")

	for name, size := range map[string]volume.Bytes{"same": s.Size, "larger": 2 * s.Size} {
		c := m.cloneOf(snap, name, size)
		require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
		requireClone(t, c)
		to := m.mount(c, "r")
		require.Equal(t, sum, sumOf(t, to+"/kept"))
		now, _, _ := df(t, to)
		require.Equal(t, size, now)
		require.NoError(t, os.Remove(to+"/kept"))
		m.unmount(to)
		requireWhole(t, m, c)
	}
	m.requireSnapshot(snap)

	thief := m.cloneOf(snap, "stolen", s.Size)
	thief.Namespace = "thief"
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), thief), `belongs to namespace "default", not to "thief"`)
	require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(snap)))
	require.Len(t, lvs(), 2)
}

func TestSnapshotKilledAfterEveryStep(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	sum := randomFile(t, m.mount(s, "a")+"/kept", 10*volume.MiB)
	snap := m.snapshotOf(s, "snap")
	c := m.cloneOf(snap, "copy", s.Size)
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "snapshot", Spec: snap}, func() { m.clear(snap.Name) }, func(int) {
		deaths++
		m.requireSnapshot(snap)
		require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
		to := m.mount(c, "b")
		require.Equal(t, sum, sumOf(t, to+"/kept"))
		m.unmount(to)
		m.clear(c.Name)
		require.NoError(t, m.records.remove(c.Group, c.Name))
	})
	require.Equal(t, 2, deaths, "snapshot; tag ready")

	// The repetition is killed as well, and an unfinished snapshot cannot be restored.
	for die := 1; die <= 3; die++ {
		m.clear(snap.Name)
		require.True(t, call{Dir: m.dir, Verb: "snapshot", Spec: snap, Die: 1}.run(t))
		require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), c), "is not created yet")
		require.True(t, call{Dir: m.dir, Verb: "snapshot", Spec: snap, Die: die}.run(t))
		_, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
		require.NoError(t, err)
		m.requireSnapshot(snap)
		require.ElementsMatch(t, []string{"source", "snap"}, lvs())
	}
	m.clear(snap.Name)
	require.True(t, call{Dir: m.dir, Verb: "snapshot", Spec: snap, Die: 1}.run(t))
	require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{}), "it was deleted meanwhile")
	require.NoError(t, m.Remove(m.ctx(), refOf(snap)))
	require.Equal(t, []string{"source"}, lvs())
}

// A snapshot that failed and was given up is taken under the same name once it can be, because the CSI
// snapshotter retries with that name. The same holds for a snapshot that was taken, deleted and removed.
func TestSnapshotIsTakenUnderANameThatWasGivenUp(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	snap := m.snapshotOf(s, "snap")
	for range 2 {
		_, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
		require.ErrorContains(t, err, "the source volume does not exist")
		require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{}))
	}
	m.unmount(m.mount(s, "a"))
	var taken []string
	for range 2 {
		began := m.givenUpAt(snap)
		made, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
		require.NoError(t, err)
		m.requireSnapshot(snap)
		require.NotContains(t, taken, made.UUID)
		taken = append(taken, made.UUID)
		require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{}))
		require.NoError(t, m.Remove(m.ctx(), refOf(snap)))
		_, err = m.makeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, began)
		require.ErrorContains(t, err, "was given up while this call waited")
		require.Equal(t, []string{"source"}, lvs())
	}
}

func TestSnapshotOfWrongSources(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("source", 64*volume.MiB)
	snap := m.snapshotOf(s, "snap")
	fails := func(c volume.Spec, says string) {
		t.Helper()
		_, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: c}, stillWanted)
		require.ErrorContains(t, err, says)
		require.NotContains(t, strings.Join(lvs(), " "), string(c.Name), "nothing was made")
	}
	fails(snap, "the source volume does not exist")
	m.unmount(m.mount(s, "a"))
	other := snap
	other.Namespace = "thief"
	fails(other, `belongs to namespace "default", not to "thief"`)
	m.shape = volume.Shape{Layout: volume.Linear}
	thick := m.volume("thick", 64*volume.MiB)
	m.unmount(m.mount(thick, "thick"))
	other = snap
	other.CloneOf = thick.Name
	fails(other, "is no thin volume in pool")
	_, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
	require.NoError(t, err)
	other = snap
	other.Name, other.CloneOf = "nested", snap.Name
	fails(other, "no snapshot is taken of it")
}
