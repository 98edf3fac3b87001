//go:build vm

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func (m *machine) takeGroup(specs ...volume.Spec) error {
	m.t.Helper()
	made, err := m.MakeSnapshotGroup(m.ctx(), requestsOf(specs), stillWanted)
	for _, v := range made {
		require.Equal(m.t, made[0].Created, v.Created, "they are of one instant")
	}
	return err
}

func requestsOf(specs []volume.Spec) (out []SnapshotRequest) {
	for _, s := range specs {
		out = append(out, SnapshotRequest{Spec: s, Charged: s.Charge()})
	}
	return out
}

// lockstep writes increasing numbers to a file in each of two directories, and syncs each: the second is
// never ahead of the first, nor more than one behind. It pauses after each number, because a node may have
// only one processor; during an LVM command it still writes several.
func lockstep(stop chan struct{}, first, second string) (ended chan error) {
	ended = make(chan error, 1)
	put := func(dir string, n int) error {
		f, err := os.OpenFile(dir+"/number", os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(f, "%08d", n)
		return errors.Join(err, f.Sync(), f.Close())
	}
	go func() {
		for n := 1; ; n++ {
			select {
			case <-stop:
				ended <- nil
				return
			case <-time.After(5 * time.Millisecond):
			}
			if err := errors.Join(put(first, n), put(second, n)); err != nil {
				ended <- err
				return
			}
		}
	}()
	return ended
}

func numberIn(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(dir + "/number")
	require.NoError(t, err)
	n, err := strconv.Atoi(string(b))
	require.NoError(t, err)
	return n
}

// requireOneInstant restores two snapshots, and checks that they are of one instant.
func (m *machine) requireOneInstant(first, second volume.Spec) {
	m.t.Helper()
	a, b := m.cloneOf(first, "first-restored", first.Size), m.copyOf(second, "second-restored", volume.Shape{Layout: volume.Linear}, second.Size)
	a.FSType, b.FSType = first.FSType, second.FSType
	require.NoError(m.t, m.CreateCloneAhead(m.ctx(), a))
	require.NoError(m.t, m.CreateCloneAhead(m.ctx(), b))
	x, y := m.mount(a, "first-restored"), m.mount(b, "second-restored")
	ahead := numberIn(m.t, x) - numberIn(m.t, y)
	m.t.Logf("the first is at %d, the second %d behind", numberIn(m.t, x), ahead)
	require.Contains(m.t, []int{0, 1}, ahead)
	m.unmount(x)
	m.unmount(y)
	for _, s := range []volume.Spec{a, b} {
		m.clear(s.Name)
		require.NoError(m.t, m.records.remove(s.Group, s.Name))
	}
}

// Snapshots of two volumes, one thin and one with a store, one XFS and one ext4, are taken at one instant
// while a program writes to both in turns. Whenever the process that takes them is killed, both volumes can
// be written to again immediately, no unfinished snapshot is used, and the next call completes the group.
func TestSnapshotGroup(t *testing.T) {
	if err := freeze.CheckSnapshots(); err != nil {
		t.Logf("only that no snapshot of a group is taken on this kernel is tested: %v", err)
		testSnapshotGroupOnEarlierKernels(t)
		return
	}
	m, _ := thinMachine(t, 4*volume.GiB)
	s, thick := m.volume("first", 64*volume.MiB), specOf("second", 64*volume.MiB)
	thick.FSType = volume.Ext4
	t.Cleanup(func() { m.clear(thick.Name) })
	from, to := m.mount(s, "a"), m.mount(thick, "b")
	group := []volume.Spec{m.snapshotOf(s, "snap-first"), m.storeOf(thick, "snap-second", 0)}
	stop := make(chan struct{})
	ended := lockstep(stop, from, to)
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(to + "/number")
		return err == nil && len(b) == 8
	}, time.Minute, 10*time.Millisecond)
	began := time.Now()
	require.NoError(t, m.takeGroup(group...))
	t.Logf("the snapshots of two volumes at one instant took %s", time.Since(began))
	require.NoError(t, m.takeGroup(group...), "they are taken once")
	require.NoFileExists(t, m.frozenPath())
	m.requireOneInstant(group[0], group[1])
	before := numberIn(t, to)
	require.Eventually(t, func() bool { return numberIn(t, to) > before }, time.Minute, 10*time.Millisecond, "nothing is frozen")

	c := call{Dir: m.dir, Verb: "snapshot-group", Spec: group[0], More: group[1:]}
	deaths := 0
	untilAlive(t, c, func() {
		m.clear(group[0].Name)
		m.clear(group[1].Name)
	}, func(step int) {
		deaths++
		m.requireSnapshot(group[0])
		require.Equal(t, volume.Ready, tagsOf(t, group[1].Name).State)
		if inFull() || step == 3 || step == 6 { // one of two is taken; one of two is ready
			m.requireOneInstant(group[0], group[1])
		}
	})
	require.Equal(t, 7, deaths, "record frozen; freeze, snapshot, snapshot; thaw; tag ready, tag ready")
	for die := 2; die <= 4; die++ {
		m.clear(group[0].Name)
		m.clear(group[1].Name)
		c.Die = die
		require.True(t, c.run(t))
		now := numberIn(t, to)
		require.Eventually(t, func() bool { return numberIn(t, to) > now }, frozenInTests-time.Minute, 5*time.Millisecond, "it is frozen after death %d", die)
	}
	close(stop)
	require.NoError(t, <-ended)
	m.testGroupOfWhatIsHeld(group)
	m.testGroupRefusals(group)
	m.testLeftFrozen(s, from)
	m.unmount(from)
	m.unmount(to)
	m.unmount(m.mount(s, "a")) // the kernel counts neither volume as frozen
	m.unmount(m.mount(thick, "b"))
}

// testGroupRefusals: a failed call leaves nothing, and thaws the volumes.
func (m *machine) testGroupRefusals(group []volume.Spec) {
	t := m.t
	require.NoError(t, m.takeGroup(group...))
	m.clear(group[1].Name)
	require.ErrorContains(t, m.takeGroup(group...), "some of it was taken and is gone")
	m.clear(group[0].Name)
	missing := group[1]
	missing.CloneOf = "nobody"
	require.ErrorContains(t, m.takeGroup(group[0], missing), "the source volume does not exist")
	raw, other, twice := group[1], group[1], group[1]
	raw.FSType, raw.Inodes = volume.Raw, 0
	require.ErrorContains(t, m.takeGroup(group[0], raw), "is a device without a file system")
	other.Namespace = "thief"
	require.ErrorContains(t, m.takeGroup(group[0], other), `belongs to namespace "thief"`)
	twice.Name = "snap-again"
	require.ErrorContains(t, m.takeGroup(group[1], twice), "is in the group twice")
	_, err := m.MakeSnapshotGroup(m.ctx(), requestsOf(group), func(context.Context) error { return errors.New("given up") })
	require.EqualError(t, err, "given up")
	m.shell("fsfreeze --freeze %s", m.target("b"))
	require.ErrorContains(t, m.takeGroup(group...), "another program has frozen it")
	m.shell("fsfreeze --unfreeze %s", m.target("b"))
	require.NotContains(t, strings.Join(lvs(), " "), "snap")
	randomFile(t, m.target("a")+"/kept", volume.MiB)
	randomFile(t, m.target("b")+"/kept", volume.MiB)
}

// testLeftFrozen: both processes were killed, so the volume was left frozen.
func (m *machine) testLeftFrozen(s volume.Spec, from string) {
	t := m.t
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	gone := frozen{Group: s.Group, Name: "gone", UUID: "x", FSType: volume.XFS}
	release, err := m.writeFrozen(m.ctx(), []frozen{gone, {Group: s.Group, Name: s.Name, UUID: lv.UUID, FSType: volume.XFS}})
	require.NoError(t, err)
	release()
	m.shell("fsfreeze --freeze %s", from)
	require.NoError(t, m.ThawLeft(m.ctx()))
	require.NoFileExists(t, m.frozenPath())
	randomFile(t, from+"/kept", volume.MiB)
	require.Error(t, exec.Command("fsfreeze", "--unfreeze", from).Run(), "it is not frozen")
	require.NoError(t, m.ThawLeft(m.ctx()))
}

// testSnapshotGroupOnEarlierKernels: nothing is frozen if LVM could not take a snapshot of it.
func testSnapshotGroupOnEarlierKernels(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("first", 64*volume.MiB)
	from := m.mount(s, "a")
	require.ErrorContains(t, m.takeGroup(m.snapshotOf(s, "snap-first")), "no snapshot is taken of a file system that is frozen")
	require.Equal(t, []string{"first"}, lvs())
	randomFile(t, from+"/kept", volume.MiB)
	m.testLeftFrozen(s, from)
	m.unmount(from)
	require.NoError(t, m.takeGroup(m.snapshotOf(s, "snap-first")), "nobody uses it")
}

// testGroupOfWhatIsHeld: while another call has locked one of the sources, for however long, the other source
// can be mounted, and the snapshots fail with ErrBusy.
func (m *machine) testGroupOfWhatIsHeld(group []volume.Spec) {
	m.clear(group[0].Name)
	m.clear(group[1].Name)
	timeout := m.sourceLockTimeout
	defer func() { m.sourceLockTimeout = timeout }()
	m.sourceLockTimeout = time.Second
	release, err := m.lockVolume(m.ctx(), group[1].Group, group[1].CloneOf)
	require.NoError(m.t, err)
	defer release()
	require.ErrorIs(m.t, m.takeGroup(group...), lock.ErrBusy)
	free, err := m.lockVolume(m.ctx(), group[0].Group, group[0].CloneOf)
	require.NoError(m.t, err)
	free()
	_, err = m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: group[1]}, stillWanted)
	require.ErrorIs(m.t, err, lock.ErrBusy)
}
