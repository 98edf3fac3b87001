//go:build vm

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/ext4"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ext4Volume is volume with ext4.
func (m *machine) ext4Volume(name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	s := m.volume(name, size)
	s.FSType = volume.Ext4
	return s
}

// asTenant calls do with the capabilities of a container that runs as root: the quota of ext4 does not limit
// processes with CAP_SYS_RESOURCE, which containers do not have by default.
func asTenant(t *testing.T, do func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &had[0]))
	without := had
	without[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	require.NoError(t, unix.Capset(&header, &without[0]))
	defer func() { require.NoError(t, unix.Capset(&header, &had[0])) }()
	do()
}

// fillExt4 is fill as a tenant. Except in full mode, it only writes the last 64 MiB, and allocates the rest
// with fallocate, which the quota counts as well.
func fillExt4(t *testing.T, file string) (total volume.Bytes) {
	t.Helper()
	_, _, free := df(t, filepath.Dir(file))
	first := max(free-64*volume.MiB, 0)
	if inFull() {
		first = 0
	}
	asTenant(t, func() { total = writeFull(t, file, first, syscall.EDQUOT) })
	return total
}

// requireRoom fills a volume with one file, which must get that much room: for its data and for its extent
// map, which needs the more blocks the less the kernel writes at once.
func requireRoom(t *testing.T, file string, room volume.Bytes) (held volume.Bytes) {
	t.Helper()
	held = fillExt4(t, file)
	var st unix.Stat_t
	require.NoError(t, unix.Stat(file, &st))
	require.GreaterOrEqual(t, 512*volume.Bytes(st.Blocks), room)
	require.GreaterOrEqual(t, held, room-room/1000-volume.Block)
	return held
}

func requireExt4(t *testing.T, m *machine, s volume.Spec) {
	t.Helper()
	m.shell("e2fsck -fn %s", devicePath(s))
}

func devicePath(s volume.Spec) string { return "/dev/mapper/" + volume.DeviceName(s.Group, s.Name) }

// As with XFS, except that a directory needs a block from the beginning, and the extent map of a large file
// some more.
func TestExt4SizeIsExact(t *testing.T) { linearAndThin(t, testExt4SizeIsExact) }

func testExt4SizeIsExact(t *testing.T, m *machine) {
	for _, size := range []volume.Bytes{volume.MiB, 64 * volume.MiB, volume.GiB} {
		m := m.in(t)
		var steps []string
		m.after = func(step string) { steps = append(steps, step) }
		s := m.ext4Volume("exact", size)
		target := m.mount(s, "a")
		require.NotContains(t, steps, "lvextend", "what was charged is enough")
		got, used, free := df(t, target)
		require.Equal(t, size, got)
		require.Equal(t, volume.Block, used)
		require.Equal(t, size-volume.Block, free)
		total := requireRoom(t, target+"/data", free)
		require.LessOrEqual(t, total, size-volume.Block)
		_, _, free = df(t, target)
		require.Zero(t, free)

		m.unmount(target)
		requireExt4(t, m, s)
		target = m.mount(s, "b")
		st, err := os.Stat(target + "/data")
		require.NoError(t, err)
		require.EqualValues(t, total, st.Size())
		asTenant(t, func() { err = os.WriteFile(target+"/more", []byte("x"), 0o600) })
		require.ErrorIs(t, err, syscall.EDQUOT)
		require.Equal(t, volume.Ext4, tagsOf(t, s.Name).FSType)
		all, err := m.List(m.ctx())
		require.NoError(t, err)
		require.Equal(t, volume.Ext4, all[0].FSType)
		require.Equal(t, s.Charge(), all[0].AllocatedWhenFull)
		m.unmount(target)
		m.clear(s.Name)
	}
}

func TestExt4InodeLimit(t *testing.T) {
	m := newMachine(t)
	s := m.ext4Volume("inodes", 64*volume.MiB)
	s.Inodes = 100
	target, made := m.mount(s, "a"), 0
	asTenant(t, func() {
		for ; made < 200; made++ {
			if err := os.WriteFile(fmt.Sprintf("%s/%d", target, made), nil, 0o600); err != nil {
				require.ErrorIs(t, err, syscall.EDQUOT)
				break
			}
		}
	})
	require.Equal(t, 99, made, "the root directory is the hundredth inode")
}

func TestExt4Expand(t *testing.T) { linearAndThin(t, testExt4Expand) }

func testExt4Expand(t *testing.T, m *machine) {
	s := m.ext4Volume("grow", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/keep", []byte("kept"), 0o600))
	_, used, _ := df(t, target)

	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB), "mounted, past what the first device holds")
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB), "again is success")
	got, _, free := df(t, target)
	require.Equal(t, volume.GiB, got)
	require.Equal(t, volume.GiB-used, free)
	requireRoom(t, target+"/data", free)

	require.NoError(t, os.Remove(target+"/data"))
	m.unmount(target)
	requireExt4(t, m, s)
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB+volume.MiB), "not mounted")
	m.shell("lvchange -an %s/%s", group, s.Name)
	require.NoError(t, m.records.remove(s.Group, s.Name))
	target = m.mount(s, "b")
	got, _, _ = df(t, target)
	require.Equal(t, volume.GiB+volume.MiB, got)
	b, err := os.ReadFile(target + "/keep")
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB), "it holds that much")
	got, _, _ = df(t, target)
	require.Equal(t, volume.GiB+volume.MiB, got, "and never shrinks")
	require.NoError(t, m.growMounted(s.Group, s.Name, target, volume.GiB+64*volume.MiB))
	got, _, _ = df(t, target)
	require.Equal(t, volume.GiB+64*volume.MiB, got)
	m.unmount(target)
	requireExt4(t, m, s)
}

// The last block group may be too small for its own metadata. The worst case is a group that begins with a
// copy of the superblock, on a large device.
func TestExt4GrowsByEveryExtent(t *testing.T) {
	m, _ := thinMachine(t, 12*volume.GiB)
	for _, last := range []volume.Bytes{3, 81} {
		s := m.ext4Volume(fmt.Sprintf("grow-%d", last), (last-1)*volume.Ext4Group/2)
		for next := larger(s); next.DeviceSize() <= last*volume.Ext4Group; next = larger(s) {
			s = next
		}
		target := m.mount(s, "a")
		for now := larger(s); now.DeviceSize() <= last*volume.Ext4Group+48*volume.MiB; now = larger(now) {
			require.NoError(t, m.Expand(m.ctx(), s, now.Size), "a device of %s", now.DeviceSize())
			got, _, _ := df(t, target)
			require.Equal(t, now.Size, got)
			sb, err := readExt4(devicePath(s))
			require.NoError(t, err)
			t.Logf("device %s, file system %s", now.DeviceSize(), sb.Size)
			require.GreaterOrEqual(t, sb.Size, now.DeviceSize()-8*volume.MiB)
		}
		m.unmount(target)
		requireExt4(t, m, s)
		m.clear(s.Name)
	}
}

// larger returns the spec with the next size that needs a larger device.
func larger(s volume.Spec) volume.Spec {
	device := s.DeviceSize()
	for s.DeviceSize() == device {
		s.Size += volume.MiB
	}
	return s
}

func TestExt4IsNotXFS(t *testing.T) {
	m := newMachine(t)
	s, x := m.ext4Volume("ext4", 64*volume.MiB), m.volume("xfs", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	m.unmount(m.mount(x, "a"))
	s.FSType, x.FSType = volume.XFS, volume.Ext4
	for range 2 {
		require.ErrorContains(t, m.tryMount(s, m.target("a")), `fsType "xfs": volume flexlvm-test/ext4 was made with ext4`)
		require.ErrorContains(t, m.tryMount(x, m.target("a")), `fsType "ext4": volume flexlvm-test/xfs was made with xfs`)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		require.NoError(t, m.records.remove(x.Group, x.Name))
	}
}

// An error that the kernel has noted is left to a person: nothing is repaired, mounted, copied or grown.
func TestExt4WithErrorsIsRefused(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.ext4Volume("damaged", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/keep", []byte("kept"), 0o600))
	m.unmount(target)
	m.shell("tune2fs -E force_fsck %s", devicePath(s))
	before := m.written(devicePath(s))
	c := m.ext4CloneOf(s, "copy", s.Size)
	for range 2 {
		for _, err := range []error{
			m.tryMount(s, target), m.Expand(m.ctx(), s, 2*s.Size), m.CreateCloneAhead(m.ctx(), c),
		} {
			require.ErrorIs(t, err, ErrDamaged)
			require.ErrorContains(t, err, "e2fsck -fn")
		}
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}
	require.Equal(t, before, m.written(devicePath(s)))
	require.Equal(t, []string{"damaged"}, lvs())

	m.shell("e2fsck -fy %s || test $? = 1", devicePath(s))
	require.FileExists(t, m.mount(s, "a")+"/keep")

	// The error is found while the volume is mounted: the kernel allows no writes, and no other pod gets the
	// volume.
	m.shell("mount -o remount,abort %s", target)
	require.Error(t, os.WriteFile(target+"/more", nil, 0o600))
	require.ErrorIs(t, m.tryMount(s, m.target("b")), ErrDamaged)
	m.unmount(target)
	require.ErrorIs(t, m.tryMount(s, target), ErrDamaged)
}

func TestExt4Trim(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.ext4Volume("data", volume.GiB)
	target := m.mount(s, "a")
	m.shell("dd if=/dev/urandom of=%s/kept bs=1M count=64 conv=fsync status=none", target)
	kept := m.shell("md5sum < %s/kept", target)
	before := m.usedOf(testPool)
	m.deleted(target, 300*volume.MiB)
	require.Greater(t, m.usedOf(testPool), before+250*volume.MiB)
	var steps int
	m.after = func(step string) {
		if step == "trim step" {
			steps++
		}
	}
	n, err := m.Trim(m.ctx(), refOf(s), 0)
	require.NoError(t, err)
	require.Equal(t, int((s.DeviceSize()+volume.Ext4Group-1)/volume.Ext4Group), steps, "group by group")
	require.Greater(t, n, 300*volume.MiB)
	require.Less(t, m.usedOf(testPool), before+20*volume.MiB)
	require.Equal(t, kept, m.shell("echo 3 >/proc/sys/vm/drop_caches; md5sum < %s/kept", target))
	m.unmount(target)
	requireExt4(t, m, s)
}

// If tags, records and the superblock all say that a volume is new, only the copies of its superblock can
// show that it was in use.
func TestExt4CopiesOfTheSuperblock(t *testing.T) {
	m := newMachine(t)
	for name, damage := range map[string]string{
		"lost":      "dd if=/dev/zero of=%s bs=4k count=1 conv=notrunc,fsync status=none",
		"scribbled": "printf x | dd of=%s bs=1 seek=1424 conv=notrunc,fsync status=none",
	} {
		served := m.creatingExt4("served-"+name, true)
		m.shell(damage, devicePath(served))
		before := m.written(devicePath(served))
		err := m.tryMount(served, m.target("b"))
		require.ErrorIs(t, err, ErrDamaged, name)
		require.ErrorContains(t, err, "shows that it was in use", name)
		require.Equal(t, before, m.written(devicePath(served)), name)

		// The remains of a killed mkfs must not make a pod wait forever.
		half := m.creatingExt4("half-"+name, false)
		m.shell(damage, devicePath(half))
		target := m.mount(half, "c")
		size, _, _ := df(t, target)
		require.Equal(t, half.Size, size, name)
		m.unmount(target)
		m.clear(served.Name)
		m.clear(half.Name)
	}
}

// creatingExt4 is creating for ext4.
func (m *machine) creatingExt4(name string, published bool) volume.Spec {
	m.t.Helper()
	behind(m)
	s := m.ext4Volume(name, 64*volume.MiB)
	if !published {
		tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind, FSType: s.FSType}
		require.NoError(m.t, m.lvm.Create(m.ctx(), lvm.LogicalVolume{Group: s.Group, Name: s.Name, Size: s.DeviceSize(), Shape: s.Shape(), Tags: tags.Strings()}))
		require.NoError(m.t, ext4.Mkfs(m.ctx(), m.host.Killable, ext4.Format{Device: devicePath(s), UUID: tags.FS, Size: s.Size}))
		return s
	}
	target := m.mount(s, "a")
	require.NoError(m.t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	require.Equal(m.t, volume.Creating, tagsOf(m.t, s.Name).State)
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
	return s
}
