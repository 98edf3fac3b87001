//go:build vm

package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/freeze"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// mountSealed is mount of a volume that may be encrypted.
func (m *machine) mountSealed(s volume.Spec, name string) string {
	m.t.Helper()
	r := MountRequest{Target: m.target(name)}
	if s.Encrypted {
		key, err := luks.NewKey([]byte("a key of more than thirty-two bytes"))
		require.NoError(m.t, err)
		r.Key = key
	}
	require.NoError(m.t, m.Mount(m.ctx(), s, r))
	return r.Target
}

// Snapshots are taken at one instant of an encrypted volume and an unencrypted one or, if the kernel cannot
// take snapshots of unencrypted frozen volumes, of two encrypted ones. Whatever prevents a group, nothing of
// it is left, nothing stays frozen, and the next group succeeds.
func TestSnapshotGroupOfEncryptedVolumes(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s, sealed := m.volume("first", 64*volume.MiB), specOf("second", 64*volume.MiB)
	t.Cleanup(func() { m.clear(sealed.Name) })
	s.Encrypted, sealed.Encrypted, sealed.FSType = freeze.CheckSnapshots() != nil, true, volume.Ext4
	from, to := m.mountSealed(s, "a"), m.mountSealed(sealed, "b")
	group := []volume.Spec{m.snapshotOf(s, "snap-first"), m.storeOf(sealed, "snap-second", 0)}
	group[0].Encrypted, group[1].Encrypted = s.Encrypted, true
	stop := make(chan struct{})
	ended := lockstep(stop, from, to)
	require.Eventually(t, func() bool {
		b, err := os.ReadFile(to + "/number")
		return err == nil && len(b) == 8
	}, time.Minute, 10*time.Millisecond)
	began := time.Now()
	require.NoError(t, m.takeGroup(group...))
	took := time.Since(began)

	first, second := m.cloneOf(group[0], "first-restored", s.Size), m.copyOf(group[1], "second-restored", volume.Shape{Layout: volume.Linear}, s.Size)
	first.Encrypted, second.Encrypted = s.Encrypted, true
	require.NoError(t, m.CreateCloneAhead(m.ctx(), second))
	x, y := m.mountSealed(first, "x"), m.mountSealed(second, "y")
	require.Contains(t, []int{0, 1}, numberIn(t, x)-numberIn(t, y), "they are of one instant")
	m.unmount(x)
	m.unmount(y)
	for _, one := range group {
		m.clear(one.Name)
	}

	m.testFrozenTooLong(group, to, max(4*time.Second, (4*took).Round(time.Second)))
	m.testThawedByAnother(group, to)
	m.testMemberFails(group, to)
	require.NoError(t, m.takeGroup(group...))
	close(stop)
	require.NoError(t, <-ended)
	m.unmount(from)
	m.unmount(to)
}

// during calls do after a step of a call that takes the group and must fail, and returns the error. Nothing
// of the group is left then, and writers continue.
func (m *machine) during(step string, group []volume.Spec, to string, do func()) error {
	m.t.Helper()
	done := false
	m.after = func(at string) {
		if at == step && !done {
			done = true
			do()
		}
	}
	err := m.takeGroup(group...)
	m.after = func(string) {}
	require.Error(m.t, err)
	require.True(m.t, done, "it got as far: %s", err)
	m.requireWritten(to)
	return err
}

// requireWritten waits until the number in a directory has changed.
func (m *machine) requireWritten(dir string) {
	m.t.Helper()
	now := numberIn(m.t, dir)
	require.Eventually(m.t, func() bool { return numberIn(m.t, dir) > now }, m.maxFrozen+time.Minute, 10*time.Millisecond, "it stays frozen")
}

func (m *machine) requireNoSnapshots() {
	m.t.Helper()
	require.NotContains(m.t, strings.Join(lvs(), " "), "snap-")
}

// testFrozenTooLong: a snapshot that takes too long does not block writers any longer than that.
func (m *machine) testFrozenTooLong(group []volume.Spec, to string, most time.Duration) {
	was := m.maxFrozen
	m.maxFrozen = most
	err := m.during("snapshot", group, to, func() {
		m.requireWritten(to)      // while the call has not returned
		<-time.After(time.Second) // until no more snapshots may be taken
	})
	m.maxFrozen = was
	require.ErrorContains(m.t, err, "they may be frozen for "+most.String()+", in which 1 were not taken")
	require.ErrorIs(m.t, err, freeze.ErrThawed)
	m.requireNoSnapshots()
}

// testThawedByAnother: after another process has thawed a volume, the snapshots may be of two instants.
func (m *machine) testThawedByAnother(group []volume.Spec, to string) {
	err := m.during("freeze", group, to, func() { m.shell("fsfreeze --unfreeze %s", to) })
	require.ErrorIs(m.t, err, freeze.ErrThawed)
	require.FileExists(m.t, m.frozenPath(), "the next looks again")
	require.NoError(m.t, m.ThawLeft(m.ctx()))
	require.NoFileExists(m.t, m.frozenPath())
	m.requireNoSnapshots()
}

// testMemberFails: LVM takes the first snapshot and not the second, whose name another volume has meanwhile.
func (m *machine) testMemberFails(group []volume.Spec, to string) {
	const other = "snap-second"
	err := m.during("freeze", group, to, func() { m.shell("lvcreate --yes -q -Wn -Zn -l1 -n %s %s", other, group[1].Group) })
	require.ErrorContains(m.t, err, other)
	require.NotErrorIs(m.t, err, freeze.ErrThawed)
	require.NoFileExists(m.t, m.frozenPath())
	require.Contains(m.t, lvs(), other, "it is not ours")
	require.NotContains(m.t, lvs(), "snap-first")
	m.shell("lvremove --yes %s/%s", group[1].Group, other)
}
