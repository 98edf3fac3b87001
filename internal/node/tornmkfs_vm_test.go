//go:build vm

package node

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/xfs"
)

// loseGroupHeader zeroes the header of free space of an XFS file system's last group, as if it had been lost
// with the disk's cache, and returns a command that shows it.
func (m *machine) loseGroupHeader(path string) string {
	m.t.Helper()
	sector, err := strconv.Atoi(m.shell("xfs_db -r -c 'agf 3' -c daddr %s | sed 's/.* //'", path))
	require.NoError(m.t, err)
	m.shell("dd if=/dev/zero of=%s bs=512 seek=%d count=1 conv=notrunc,fsync status=none", path, sector)
	return fmt.Sprintf("dd if=%s bs=512 skip=%d count=1 status=none | tr -d '\\0' | wc -c", path, sector)
}

// After a power cut, only the superblock of what mkfs has written may be on the disk. No pod has had such a
// volume, so it is formatted again; otherwise it would lose what pods write, or make them wait forever.
func TestMkfsThatAPowerCutHasTorn(t *testing.T) { linearAndThin(t, testMkfsThatAPowerCutHasTorn) }

func testMkfsThatAPowerCutHasTorn(t *testing.T, m *machine) {
	torn := creating(m, "torn", false)
	header := m.loseGroupHeader(devicePath(torn))
	require.Equal(t, "0", m.shell("%s", header))
	target := m.mount(torn, "a")
	size, _, _ := df(t, target)
	require.Equal(t, torn.Size, size)
	require.Equal(t, torn.Size, fill(t, target+"/data"))
	m.unmount(target)
	requireWhole(t, m, torn)
	require.Equal(t, copyFS, tagsOf(t, torn.Name).FS)

	// A volume that a pod has had is not formatted, even if part of it and its record are lost.
	served := creating(m, "served", true)
	header = m.loseGroupHeader(devicePath(served))
	lv, err := m.lvm.Volume(m.ctx(), served.Group, served.Name)
	require.NoError(t, err)
	d, err := m.usableDevice(m.ctx(), served.Group, served.Name)
	require.NoError(t, err)
	tags := tagsOf(t, served.Name)
	never, err := mayFormat(served, lv, openedVolume{device: d, content: m.contentOf(d, tags), tags: tags}, true)
	require.NoError(t, err)
	require.False(t, never)
	err = m.tryMount(served, m.target("b"))
	require.Error(t, err)
	require.Regexp(t, "structure needs cleaning|input/output error", err.Error(), "newer kernels say the former, Linux 6.1 the latter")
	require.Equal(t, "0", m.shell("%s", header), "it was formatted again")
}

// A volume that a pod has had is not formatted if the records are lost.
func TestServedVolumesWithoutRecords(t *testing.T) {
	m := newMachine(t)
	for _, s := range []volume.Spec{creating(m, "xfs", true), m.creatingExt4("ext4", true)} {
		require.FileExists(t, m.mount(s, "b-"+string(s.Name))+"/f")
	}
}

func TestMke2fsThatAPowerCutHasTorn(t *testing.T) {
	m := newMachine(t)
	s := m.creatingExt4("torn", false)
	path := devicePath(s)
	bitmap := m.shell("dumpe2fs %s 2>/dev/null | sed -n 's/.*Block bitmap at \\([0-9]*\\).*/\\1/p' | head -1", path)
	m.shell("dd if=/dev/zero of=%s bs=4096 seek=%s count=1 conv=notrunc,fsync status=none", path, bitmap)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	requireExt4(t, m, s)
}

// A pool holds nothing before it is ready.
func TestPoolWhoseMkfsAPowerCutHasTorn(t *testing.T) {
	m := newMachine(t)
	t.Cleanup(func() { m.clear(testDirectories) })
	size := volume.MinDirectoryPool
	tags := volume.DirectoryPool{State: volume.Creating, FS: copyFS, Size: size}
	lv := lvm.LogicalVolume{Group: group, Name: testDirectories, Tags: tags.Strings(), Size: volume.XFSDeviceSize(size, 0), Shape: volume.Shape{Layout: volume.Linear}}
	require.NoError(t, m.lvm.Create(m.ctx(), lv))
	path := "/dev/mapper/" + volume.DeviceName(group, testDirectories)
	require.NoError(t, xfs.Mkfs(m.ctx(), m.host.Killable, xfs.Format{Device: path, UUID: tags.FS, Size: size, AnyInodes: true}))
	m.loseGroupHeader(path)
	_, err := m.MakeDirectoryPool(m.ctx(), group, testDirectories, size)
	require.NoError(t, err)
	m.shell("xfs_repair -n "+frugally+" %s", path)

	// The pool was in use; its tags say creating again, and its record is lost.
	s := directorySpec("data", 16*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	m.shell("lvchange --deltag %s --addtag %s %s/%s", volume.Ready.Tag(), volume.Creating.Tag(), group, testDirectories)
	require.NoError(t, m.records.remove(group, testDirectories))
	_, err = m.MakeDirectoryPool(m.ctx(), group, testDirectories, size)
	require.NoError(t, err)
	require.FileExists(t, m.mount(s, "a")+"/f")
	m.unmount(target)
}

// A record may have a size that the device has lost. The repeated growth takes every step, although the mount
// before it has set the limit, even if a growth in between was killed.
func TestGrowthThatTheDeviceHasLost(t *testing.T) { linearAndThin(t, testGrowthThatTheDeviceHasLost) }

func testGrowthThatTheDeviceHasLost(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.unmount(target)
	rec, err := m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	rec.Size = grown
	require.NoError(t, m.records.write(s.Group, s.Name, rec))
	m.mount(s, "a")
	for die := 1; (call{Dir: m.dir, Verb: "expand", Spec: s, Size: grown, Die: die}).run(t); die++ {
		require.Less(t, die, 10)
	}
	size, _, _ := df(t, target)
	require.Equal(t, grown, size)
	require.Equal(t, grown, allocate(t, target+"/data"))
}
