//go:build vm

package node

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Whatever a killed growth has left, the pod sees no other volume's data, and everything that it has written,
// as far as it saw the device, is there after the growth was repeated, immediately or by the next mount.
func TestBlockExpandKilledAfterEveryStep(t *testing.T) {
	campaign(t, func(t *testing.T, m *machine) {
		s := m.rawVolume("data", rawSize)
		target, deaths := m.file("a"), 0
		for die := 1; ; die++ {
			m.clearRaw(s)
			m.dirty()
			m.mountRaw(s, "a")
			first := pattern("first ", rawSize)
			writeDevice(t, target, 0, first)
			if !(call{Dir: m.dir, Verb: "expand", Spec: s, Size: rawGrown, Die: die}.run(t)) {
				break
			}
			deaths++
			seen, err := deviceSize(target)
			require.NoError(t, err)
			require.Contains(t, []volume.Bytes{rawSize, rawGrown}, seen)
			requireContent(t, target, seen, first)
			second := pattern("second ", seen)
			writeDevice(t, target, 0, second)
			if die%2 == 0 {
				m.unmount(target)
				m.mountRaw(s, "a")
				seen = requireGrown(t, target, seen, second)
				m.unmount(target)
				m.shell("lvchange -an %s/%s", group, s.Name) // as after a boot
				m.mountRaw(s, "a")
				seen = requireGrown(t, target, seen, second)
				require.NoError(t, m.Expand(m.ctx(), s, rawSize+volume.Block), "the user asks for less")
				m.unmount(target)
				m.mountRaw(s, "a")
				requireGrown(t, target, seen, second)
			}
			require.NoError(t, m.Expand(m.ctx(), s, rawGrown))
			requireContent(t, target, rawGrown, second)
		}
		m.clearRaw(s)
		if m.shape.Layout == volume.Linear {
			require.Equal(t, 6, deaths, "lvextend; zero, tag zeroed; tag size, write record; grow mapping")
		}
	})
}

// requireGrown checks the content of a device, which must not have shrunk below was, and returns its size.
func requireGrown(t *testing.T, path string, was volume.Bytes, data []byte) volume.Bytes {
	t.Helper()
	now, err := deviceSize(path)
	require.NoError(t, err)
	require.GreaterOrEqual(t, now, was)
	requireContent(t, path, now, data)
	return now
}

// A volume does not grow while its new size cannot be recorded: its next mount would shrink it again.
func TestBlockGrowsNotUnrecorded(t *testing.T) {
	m := newMachine(t)
	dir := m.dir + "/state"
	require.NoError(t, os.Mkdir(dir, 0o700))
	m.shell("mount -t tmpfs tmpfs %s", dir)
	t.Cleanup(func() { m.shell("umount %s", dir) })
	s := m.rawVolume("data", rawSize)
	target := m.mountRaw(s, "a")
	m.shell("mount -o remount,ro %s", dir)
	require.ErrorContains(t, m.growMounted(s.Group, s.Name, target, rawGrown), "does not grow before its new size is on record")
	requireContent(t, target, rawSize, nil)
	m.unmount(target)
	requireContent(t, m.mountRaw(s, "a"), rawSize, nil)
	m.unmount(target)
	m.shell("lvchange -an %s/%s", group, s.Name) // as after a boot
	require.ErrorContains(t, m.tryMount(s, target), "before its size is on record")
	m.shell("mount -o remount,rw %s; lvchange -an %s/%s", dir, group, s.Name)
	requireContent(t, m.mountRaw(s, "a"), rawGrown, nil)
	m.shell("mount -o remount,ro %s", dir)
	m.unmount(target)
	requireContent(t, m.mountRaw(s, "a"), rawGrown, nil)
	m.shell("mount -o remount,rw %s", dir)
	require.NoError(t, m.growMounted(s.Group, s.Name, target, rawGrown))
	requireContent(t, target, rawGrown, nil)
	m.unmount(target)
	requireContent(t, m.mountRaw(s, "a"), rawGrown, nil)
	m.unmount(target)
}

// If the disk is too slow for one call, every call makes progress.
func TestBlockZeroingOutlivesItsCalls(t *testing.T) {
	m := newMachine(t)
	m.dirty()
	began := time.Now()
	m.unmount(m.mountRaw(m.rawVolume("first", 12*volume.MiB), "first"))
	limit := time.Since(began) + time.Second
	s := m.rawVolume("data", 12*volume.MiB)
	m.zeroRate = volume.Bytes(float64(12*volume.MiB) / (3 * limit).Seconds()) // at least three calls
	target, calls := m.file("a"), 0
	for err := context.DeadlineExceeded; err != nil; calls++ {
		require.Less(t, calls, 30)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		err = m.Mount(ctx, s, MountRequest{Target: target})
		cancel()
	}
	require.GreaterOrEqual(t, calls, 3)
	require.Equal(t, s.DeviceSize(), tagsOf(t, s.Name).Zeroed)
	requireContent(t, target, s.Size, nil)
	m.unmount(target)
}

// Whatever a killed dmsetup has left, the next mount creates the mapping, and never while LVM scans devices.
// Another program's mapping stays.
func TestBlockMappingIsMade(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", rawSize)
	target, data := m.mountRaw(s, "a"), pattern("data ", rawSize)
	writeDevice(t, target, 0, data)
	m.unmount(target)
	name := dm.BlockName(m.uuidOf(s))
	t.Cleanup(func() { m.clearRaw(s) })
	create := func() { m.shell("dmsetup create %s --uuid FLEXLVM-%[1]s --notable", name) }
	load := func() {
		create()
		m.shell("dmsetup load %s --table '0 8 linear /dev/mapper/%s 0'", name, volume.DeviceName(group, s.Name))
	}
	for state, begin := range map[string]func(){"created": create, "loaded": load, "cleared": func() { load(); m.shell("dmsetup clear %s", name) }} {
		if state != "created" { // sysfs shows a mapping only once it has had a table
			begin()
			require.NoError(t, m.CloseUnused(m.ctx()), state)
			m.shell("! dmsetup info %s", name)
		}
		begin()
		m.mountRaw(s, "a")
		requireContent(t, target, rawSize, data)
		m.unmount(target)
	}
	m.shell("dmsetup create %s --uuid OTHER-%[1]s --notable", name)
	require.ErrorIs(t, m.tryMount(s, target), dm.ErrBusy)
	require.Contains(t, m.shell("dmsetup info %s", name), "OTHER-")
	m.shell("dmsetup remove %s", name)

	require.NoError(t, m.lvm.Alone(m.ctx(), func() error {
		ctx, cancel := context.WithTimeout(m.ctx(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, m.Mount(ctx, s, MountRequest{Target: target}), lock.ErrBusy)
		return nil
	}))
	m.mountRaw(s, "a")
	m.unmount(target)
}
