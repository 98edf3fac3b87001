//go:build vm

package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// usedOf returns how much of a thin pool is used.
func (m *machine) usedOf(pool volume.Name) volume.Bytes {
	m.t.Helper()
	p, err := m.lvm.ThinPool(m.ctx(), group, pool)
	require.NoError(m.t, err)
	return p.Used
}

// deleted writes that much to a volume and deletes it, both durably.
func (m *machine) deleted(target string, size volume.Bytes) {
	m.t.Helper()
	m.shell("dd if=/dev/urandom of=%s/gone bs=1M count=%d conv=fsync status=none", target, size/volume.MiB)
	m.shell("rm %s/gone; sync -f %s", target, target)
}

// trimmedOf returns when a volume was last trimmed, as reported by another process.
func (m *machine) trimmedOf(n volume.Name) time.Time {
	m.t.Helper()
	all, err := machineAt(m.t, m.dir, "").List(m.ctx())
	require.NoError(m.t, err)
	for _, v := range all {
		if v.Name == n {
			return v.LastTrimmed
		}
	}
	require.FailNow(m.t, "no such volume", n)
	return time.Time{}
}

// A thin pool gets back what was deleted in a volume, and the rest stays.
func TestTrimGivesBackWhatWasDeleted(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("data", volume.GiB)
	target := m.mount(s, "a")
	m.shell("dd if=/dev/urandom of=%s/kept bs=1M count=64 conv=fsync status=none", target)
	kept := m.shell("md5sum < %s/kept", target)
	m.deleted(target, 200*volume.MiB)
	full := m.usedOf(testPool)
	require.Zero(t, m.trimmedOf(s.Name))

	now := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	m.now = func() time.Time { return now }
	var steps int
	m.after = func(step string) {
		if step == "trim step" {
			steps++
		}
	}
	discarded, err := m.Trim(m.ctx(), refOf(s), 0)
	require.NoError(t, err)
	t.Logf("%s of %s discarded in %d steps; the pool held %s and holds %s", discarded, s.Size, steps, full, m.usedOf(testPool))
	require.GreaterOrEqual(t, discarded, 200*volume.MiB)
	require.Less(t, m.usedOf(testPool), full-190*volume.MiB)
	require.Equal(t, now, m.trimmedOf(s.Name))
	m.shell("sync; echo 3 > /proc/sys/vm/drop_caches")
	require.Equal(t, kept, m.shell("md5sum < %s/kept", target))

	other := Ref{Group: group, Name: s.Name, Cluster: "another"}
	_, err = m.Trim(m.ctx(), other, 0)
	require.ErrorIs(t, err, ErrRefused)
	m.unmount(target)
	_, err = m.Trim(m.ctx(), refOf(s), 0)
	require.ErrorIs(t, err, ErrNotMounted)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	_, err = m.Trim(m.ctx(), refOf(s), 0)
	require.ErrorIs(t, err, ErrRefused)
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	_, err = m.Trim(m.ctx(), refOf(s), 0)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
}

// A volume that is not flexlvm's is not trimmed.
func TestTrimTouchesNothingOfOthers(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	m.shell("lvcreate -qq --yes --virtualsize 1G --thinpool %s/%s --name foreign", group, testPool)
	t.Cleanup(func() { m.clear("foreign") })
	target := m.target("foreign")
	m.shell("mkfs.xfs -q /dev/%s/foreign; mount /dev/%s/foreign %s", group, group, target)
	m.deleted(target, 100*volume.MiB)
	full := m.usedOf(testPool)
	_, err := m.Trim(m.ctx(), Ref{Group: group, Name: "foreign", Cluster: cluster}, 0)
	require.ErrorIs(t, err, ErrRefused)
	require.Equal(t, full, m.usedOf(testPool))
}

// A volume can be unmounted while it is trimmed, and is not removed before the step is done.
func TestTrimBesideUnmount(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	s := m.volume("data", 512*volume.MiB)
	target := m.mount(s, "a")
	lv, err := m.lvm.Volume(m.ctx(), group, s.Name)
	require.NoError(t, err)
	ref := refOf(s)
	ref.UUID = lv.UUID
	require.NoError(t, m.whileMounted(m.ctx(), ref, tagsOf(t, s.Name), func(_ content, fs *mount.Attached) error {
		m.unmount(target)
		require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
		require.ErrorIs(t, m.Remove(m.ctx(), ref), ErrInUse)
		_, err := fs.Trim(0, s.Size)
		return err
	}))
	require.ErrorIs(t, m.whileMounted(m.ctx(), ref, volume.Tags{}, nil), ErrNotMounted)
	require.NoError(t, m.Remove(m.ctx(), ref))

	// If something else is mounted on top, it is left alone.
	s = m.volume("hidden", 512*volume.MiB)
	target = m.mount(s, "b")
	m.shell("mount -t tmpfs none %s", target)
	_, err = m.Trim(m.ctx(), refOf(s), 0)
	require.ErrorIs(t, err, ErrNotMounted)
	m.shell("umount %s", target)
	_, err = m.Trim(m.ctx(), refOf(s), 0)
	require.NoError(t, err)
}

func TestTrimOfASuspendedDevice(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	s := m.volume("data", 512*volume.MiB)
	m.mount(s, "a")
	name := volume.DeviceName(group, s.Name)
	m.resumeWait = 300 * time.Millisecond
	m.shell("dmsetup suspend --nolockfs %s", name)
	_, err := m.Trim(m.ctx(), refOf(s), 0)
	m.shell("dmsetup resume %s", name)
	require.ErrorIs(t, err, lvm.ErrSuspended)
}

// The rate bounds the discards, and a trim ends soon after it is cancelled.
func TestTrimRate(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	s := m.volume("data", 512*volume.MiB)
	m.mount(s, "a")
	began := time.Now()
	discarded, err := m.Trim(m.ctx(), refOf(s), 128*volume.MiB)
	took := time.Since(began)
	t.Logf("%s in %s", discarded, took)
	require.NoError(t, err)
	require.GreaterOrEqual(t, discarded, 400*volume.MiB)
	require.GreaterOrEqual(t, took.Seconds(), float64(discarded)/float64(128*volume.MiB)*0.9)

	before := m.trimmedOf(s.Name)
	ctx, cancel := context.WithCancel(m.ctx())
	defer cancel()
	m.after = func(step string) {
		if step == "trim step" { // which may take a second at this rate, so Trim waits
			time.AfterFunc(100*time.Millisecond, cancel)
		}
	}
	discarded, err = m.Trim(ctx, refOf(s), minTrimStep)
	require.ErrorIs(t, err, context.Canceled)
	require.Positive(t, discarded)
	require.Equal(t, before, m.trimmedOf(s.Name), "it did not come to its end")
}

// A trim that is killed after any step leaves a usable volume, and the next trim completes.
func TestTrimKilledAfterEveryStep(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("data", 2*volume.GiB)
	target := m.mount(s, "a")
	m.shell("dd if=/dev/urandom of=%s/kept bs=1M count=32 conv=fsync status=none", target)
	kept := m.shell("md5sum < %s/kept", target)
	var full volume.Bytes
	c := call{Dir: m.dir, Verb: "trim", Spec: s}
	untilAlive(t, c, func() {
		m.deleted(target, 100*volume.MiB)
		full = m.usedOf(testPool)
	}, func(step int) {
		require.Equal(t, kept, m.shell("md5sum < %s/kept", target))
		require.Less(t, m.usedOf(testPool), full-90*volume.MiB, "after death %d", step)
		require.NotZero(t, m.trimmedOf(s.Name))
	})
	m.unmount(target)
	m.shell("xfs_repair -n "+frugally+" /dev/%s/%s", group, s.Name)
}
