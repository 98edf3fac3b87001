//go:build vm

package node

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Options belong to one mount: they do not affect other mounts of the same volume.
func TestMountOptions(t *testing.T) { linearAndThin(t, testMountOptions) }

func testMountOptions(t *testing.T, m *machine) {
	s := m.volume("options", 64*volume.MiB)
	plain := m.mount(s, "plain")
	with := m.target("with")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: with, Options: []volume.MountOption{volume.NoAtime, volume.NoExec, volume.NoSUID}}))

	const script = "/program"
	require.NoError(t, os.WriteFile(plain+script, []byte("#!/bin/sh\ntrue\n"), 0o700))
	m.shell("%s", plain+script)
	flags := flagsOf(t, with)
	require.NotZero(t, flags&unix.ST_NOATIME)
	require.NotZero(t, flags&unix.ST_NOSUID)
	require.NotZero(t, flags&unix.ST_NOEXEC)
	require.NotZero(t, flags&unix.ST_NODEV)
	require.Zero(t, flags&unix.ST_RDONLY)
	require.Equal(t, "126", shellOut(with+script+"; echo $?"), "it must not be executable there")
	flags = flagsOf(t, plain)
	require.Zero(t, flags&(unix.ST_NOATIME|unix.ST_NOSUID|unix.ST_NOEXEC))
	require.NotZero(t, flags&unix.ST_NODEV)

	both := m.target("both")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: both, ReadOnly: true, Options: []volume.MountOption{volume.NoAtime}}))
	require.NotZero(t, flagsOf(t, both)&unix.ST_RDONLY)
	require.ErrorIs(t, os.WriteFile(both+"/f", nil, 0o600), syscall.EROFS)

	none := m.target("none")
	require.ErrorContains(t, m.Mount(m.ctx(), s, MountRequest{Target: none, Options: []volume.MountOption{"dev"}}), "not known")
	require.False(t, isMounted(none))
}

func flagsOf(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Statfs_t
	require.NoError(t, unix.Statfs(path, &st))
	return st.Flags
}

// A mount with Alone fails while the volume is mounted elsewhere, and succeeds again where it is already
// mounted.
func TestMountAlone(t *testing.T) { linearAndThin(t, testMountAlone) }

func testMountAlone(t *testing.T, m *machine) {
	s := m.volume("alone", 64*volume.MiB)
	first, second := m.target("first"), m.target("second")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: first, Alone: true}))
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: first, Alone: true}))
	err := m.Mount(m.ctx(), s, MountRequest{Target: second, Alone: true})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, first)
	require.False(t, isMounted(second))
	m.unmount(first)
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: second, Alone: true}))
}

// growMounted returns the error of ExpandMounted.
func (m *machine) growMounted(g volume.Group, n volume.Name, path string, size volume.Bytes) error {
	_, err := m.ExpandMounted(m.ctx(), g, n, path, size, luks.Key{})
	return err
}

// A volume can be grown by its name and the path where it is mounted, and keeps its inode limit.
func TestExpandMounted(t *testing.T) { linearAndThin(t, testExpandMounted) }

func testExpandMounted(t *testing.T, m *machine) {
	s := m.volume("grows", 64*volume.MiB)
	s.Inodes = 500
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("here"), 0o600))
	for range 2 { // and again, when it is already done
		require.NoError(t, m.growMounted(group, s.Name, target, 128*volume.MiB))
	}
	size, _, _ := df(t, target)
	require.Equal(t, 128*volume.MiB, size)
	require.Equal(t, 128*volume.MiB, tagsOf(t, s.Name).Size)
	b, err := os.ReadFile(target + "/f")
	require.NoError(t, err)
	require.Equal(t, "here", string(b))
	space, err := m.Space(group, s.Name, target)
	require.NoError(t, err)
	require.EqualValues(t, 500, space.Inodes)
	// Never less: kubelet may request less after a user has done so.
	require.NoError(t, m.growMounted(group, s.Name, target, 64*volume.MiB))
	require.Equal(t, 128*volume.MiB, tagsOf(t, s.Name).Size)

	elsewhere := m.target("elsewhere")
	for _, path := range []string{elsewhere, filepath.Join(m.dir, "nowhere"), "/proc"} {
		require.ErrorIs(t, m.growMounted(group, s.Name, path, volume.GiB), ErrNotMounted, path)
	}
	other := m.volume("other", 64*volume.MiB)
	b2 := m.mount(other, "b")
	require.ErrorIs(t, m.growMounted(group, s.Name, b2, volume.GiB), ErrNotMounted, "another volume is mounted there")
	require.Equal(t, 64*volume.MiB, tagsOf(t, other.Name).Size)
	require.Equal(t, 128*volume.MiB, tagsOf(t, s.Name).Size)
}

// kubelet remembers one path for each volume: the path of the last pod that got the device, even after that pod
// has ended. The other pods' device grows nevertheless.
func TestBlockGrowsAfterItsLastPodHasEnded(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", rawSize)
	target, last := m.mountRaw(s, "a"), m.mountRaw(s, "b")
	data := pattern("kept ", rawSize)
	writeDevice(t, target, 0, data)
	require.NoError(t, m.growMounted(s.Group, s.Name, last, rawSize))
	m.unmount(last)
	for range 2 { // and again, when it is already done
		space, err := m.ExpandMounted(m.ctx(), s.Group, s.Name, last, rawGrown, luks.Key{})
		require.NoError(t, err)
		require.Equal(t, Space{Size: rawGrown, Block: true}, space)
	}
	requireContent(t, target, rawGrown, data)
	_, err := m.Space(s.Group, s.Name, last)
	require.ErrorIs(t, err, ErrNotMounted)
	files := m.volume("files", 64*volume.MiB)
	for _, path := range []string{"/proc", m.mount(files, "files")} {
		require.ErrorIs(t, m.growMounted(s.Group, s.Name, path, 2*rawGrown), ErrNotMounted, "something else is mounted there")
	}
	require.ErrorIs(t, m.growMounted(files.Group, files.Name, last, volume.GiB), ErrNotMounted, "it has a file system")
	m.unmount(target)
	require.ErrorIs(t, m.growMounted(s.Group, s.Name, last, 2*rawGrown), ErrNotMounted, "no pod has it")
}

// Space returns the output of df, for this volume only.
func TestSpaceOfMounted(t *testing.T) { linearAndThin(t, testSpaceOfMounted) }

func testSpaceOfMounted(t *testing.T, m *machine) {
	s := m.volume("space", 64*volume.MiB)
	s.Inodes = 100
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte(strings.Repeat("x", int(volume.MiB))), 0o600))
	m.shell("sync -f %s", target)
	got, err := m.Space(group, s.Name, target)
	require.NoError(t, err)
	size, used, free := df(t, target)
	require.Equal(t, 64*volume.MiB, got.Size)
	require.Equal(t, volume.MiB, used)
	require.Equal(t, [...]volume.Bytes{size, used, free}, [...]volume.Bytes{got.Size, got.Used, got.Free})
	require.Equal(t, [...]int64{100, 2, 98}, [...]int64{got.Inodes, got.InodesUsed, got.InodesFree}, "the root and the file")
	m.unmount(target)
	_, err = m.Space(group, s.Name, target)
	require.ErrorIs(t, err, ErrNotMounted)
}
