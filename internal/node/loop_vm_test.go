//go:build vm

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/loop"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// loopBed returns a file system for the files of loop devices.
func loopBed(t *testing.T, m *machine) (dir string, d volumegroup.Declaration) {
	t.Helper()
	disk := serialDisks(t, m)[0]
	dir = filepath.Join(m.dir, "files")
	require.NoError(t, os.Mkdir(dir, 0o700))
	m.shell("mkfs.xfs -q %s && mount %s %s", disk, disk, dir)
	t.Cleanup(func() { m.shell("umount %s", dir) })
	d = volumegroup.Declaration{Name: "vg-create:declared-test", Group: declaredGroup, ThinPool: "thinpool", ThinSize: 256 * volume.MiB, Loop: &volumegroup.Loop{File: dir + "/a.img", Size: 700 * volume.MiB, ForTests: true}}
	t.Cleanup(func() { m.dropLoops(dir) })
	return dir, d
}

// shutDown does to the group on loop devices what a reboot does.
func (m *machine) shutDown() {
	m.shell("vgchange -qq -an %s; for d in $(losetup -n -O NAME,BACK-FILE | grep %s | cut -d' ' -f1); do losetup -d $d; done", declaredGroup, m.dir)
}

// dropLoops removes the group, its loop devices and their files.
func (m *machine) dropLoops(dir string) {
	if shellOut("vgs --noheadings -o vg_name -S vg_name="+string(declaredGroup)) != "" {
		m.shell("vgremove -qq --yes --force %s", declaredGroup)
	}
	m.shell("for d in $(losetup -n -O NAME,BACK-FILE | grep %s | cut -d' ' -f1); do losetup -d $d; done; rm -f %s/*", dir, dir)
}

// Wherever a command was killed, repeating it creates the group, once. Its file is sparse, supports discards
// and direct I/O, and is attached again after a boot.
func TestLoopGroup(t *testing.T) {
	m := newMachine(t)
	dir, d := loopBed(t, m)
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "loop", Declared: []volumegroup.Declaration{d}}, func() {
		m.dropLoops(dir)
		require.NoError(t, os.RemoveAll(filepath.Join(m.dir, "state")))
	}, func(step int) {
		deaths++
		require.Len(t, groupDevices(), 1, "death %d", step)
	})
	require.Equal(t, 10, deaths, "file, record, attach; record; pvcreate, record; vgcreate, record; lvcreate, record")

	device, there, err := loop.Attached(d.Loop.File)
	require.NoError(t, err)
	require.True(t, there)
	require.Equal(t, []string{device.Device}, groupDevices())
	require.Equal(t, d.Loop.Size, device.Size)
	require.True(t, device.Direct)
	m.shell("lvcreate -qq -y -L 64m -n data %s && dd if=/dev/urandom of=/dev/%s/data bs=1M count=64 oflag=direct status=none", declaredGroup, declaredGroup)
	sum := shellOut("md5sum < /dev/" + string(declaredGroup) + "/data")
	full := blocksOf(t, d.Loop.File)

	m.shutDown()
	require.Empty(t, groupDevices())
	require.NoError(t, m.AttachLoops(m.ctx()))
	require.NoError(t, m.AttachLoops(m.ctx()), "once more")
	require.Len(t, groupDevices(), 1)
	m.shell("lvchange -qq -ay %s/data", declaredGroup)
	require.Equal(t, sum, shellOut("md5sum < /dev/"+string(declaredGroup)+"/data"))
	m.shell("blkdiscard /dev/%s/data", declaredGroup)
	require.Less(t, blocksOf(t, d.Loop.File), full-32*int64(volume.MiB), "the file gives back what is discarded")

	out, _, err := m.MakeLoopGroup(m.ctx(), d)
	require.NoError(t, err)
	require.Equal(t, volumegroup.Made, out.State)
	require.False(t, out.Changed)
}

func blocksOf(t *testing.T, file string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(file, &st))
	return st.Blocks * 512
}

// An existing file is never touched, and a deleted file is not created again until a person requests it.
func TestLoopGroupThatIsRefused(t *testing.T) {
	m := newMachine(t)
	dir, d := loopBed(t, m)
	d.ThinPool = ""
	refused := func(says string) {
		t.Helper()
		_, _, err := m.MakeLoopGroup(m.ctx(), d)
		require.ErrorContains(t, err, says)
		require.Empty(t, groupDevices())
	}
	require.NoError(t, os.WriteFile(d.Loop.File, []byte("a person's"), 0o600))
	refused("flexlvm has not created it")
	text, err := os.ReadFile(d.Loop.File)
	require.NoError(t, err)
	require.Equal(t, "a person's", string(text))
	require.NoError(t, os.Remove(d.Loop.File))

	require.NoError(t, os.Symlink(dir, filepath.Join(m.dir, "link")))
	straight := d.Loop.File
	d.Loop.File = filepath.Join(m.dir, "link", "a.img")
	refused("leads through a link")
	d.Loop.File = straight

	_, device, err := m.MakeLoopGroup(m.ctx(), d)
	require.NoError(t, err)
	require.Len(t, groupDevices(), 1)
	d.Loop.Size += volume.GiB
	_, _, err = m.MakeLoopGroup(m.ctx(), d)
	require.ErrorContains(t, err, "its size is not changed")
	d.Loop.Size -= volume.GiB

	m.dropLoops(dir)
	require.ErrorContains(t, m.AttachLoops(m.ctx()), "is gone")
	refused("it is not created again")
	require.NoFileExists(t, d.Loop.File)
	require.NoError(t, os.Remove(m.loopRecord(device.File)))
	out, device, err := m.MakeLoopGroup(m.ctx(), d)
	require.NoError(t, err)
	require.Equal(t, volumegroup.Made, out.State, "a person may begin again: %s", out.Message)

	for range 2 {
		m.shell("vgremove -qq --yes %s && pvremove -qq %s && blkdiscard --zeroout %[2]s", declaredGroup, device.Device)
		out, _, err = m.MakeLoopGroup(m.ctx(), d)
		require.NoError(t, err)
		require.Equal(t, volumegroup.Made, out.State, "on the same file: %s", out.Message)
	}

	other := d
	other.Name = "another"
	_, _, err = m.MakeLoopGroup(m.ctx(), other)
	require.ErrorContains(t, err, "volume group exists")
	require.Equal(t, "1", strings.TrimSpace(shellOut("ls "+dir+" | wc -l")))
}
