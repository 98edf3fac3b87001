//go:build vm

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const testDirectories = volume.Name("directories")

// directories creates a directory pool, and removes it with everything in it when the test ends.
func (m *machine) directories(size volume.Bytes) {
	m.t.Helper()
	m.t.Cleanup(func() { m.clear(testDirectories) })
	_, err := m.MakeDirectoryPool(m.ctx(), group, testDirectories, size)
	require.NoError(m.t, err)
}

func directorySpec(name string, size volume.Bytes) volume.Spec {
	s := specOf(name, size)
	s.Layout, s.DirectoryPool = volume.Directory, testDirectories
	return s
}

// pool returns the directory pool's entry in the inventory, and its volumes by name.
func (m *machine) pool() (inventory.Pool, map[volume.Name]inventory.Volume) {
	m.t.Helper()
	in, err := m.Inventory(m.ctx())
	require.NoError(m.t, err)
	var pool inventory.Pool
	for _, p := range in.Pools {
		if p.Name == volume.DirectoryPoolOf(group, testDirectories) {
			pool = p
		}
	}
	require.NotNil(m.t, pool.Directories)
	volumes := map[volume.Name]inventory.Volume{}
	for _, v := range in.Volumes {
		if v.Pool() == pool.Name {
			volumes[v.Name] = v
		}
	}
	return pool, volumes
}

// TestDirectoryIsExact: df shows the requested size, and exactly that fits in, for data and for inodes,
// whatever else is in the pool.
func TestDirectoryIsExact(t *testing.T) {
	m := newMachine(t)
	m.directories(128 * volume.MiB)
	empty, _ := m.pool()
	require.Equal(t, 128*volume.MiB, empty.Free)
	for _, size := range []volume.Bytes{volume.MinDirectory, 600_001, 8 * volume.MiB} {
		s := directorySpec(fmt.Sprintf("size-%d", size), size)
		dir := m.mount(s, string(s.Name))
		total, used, free := df(t, dir)
		require.Equal(t, []volume.Bytes{size.RoundUp(volume.Block), 0, size.RoundUp(volume.Block)}, []volume.Bytes{total, used, free})
		require.Equal(t, size.RoundUp(volume.Block), fill(t, dir+"/file"))
		require.NoError(t, os.Remove(dir+"/file"))
	}
	m.makesFilesWhile(256 * volume.KiB)
	s := directorySpec("files", volume.MinDirectory)
	dir := m.mount(s, "files")
	made := 0
	var err error
	for ; err == nil; made++ {
		err = syscall.Mknod(fmt.Sprintf("%s/%d", dir, made), syscall.S_IFIFO, 0)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.Equal(t, 63, made-1, "its root is one of 64")
	pool, volumes := m.pool()
	require.Len(t, volumes, 5)
	require.Equal(t, []string{dir}, volumes["files"].Mounts)
	require.Equal(t, volume.Ready, volumes["files"].State)
	sum := volume.Bytes(0)
	for _, v := range volumes {
		require.Empty(t, v.Problem)
		sum += v.Allocated
	}
	require.Equal(t, empty.Free-sum, pool.Free)
	require.Empty(t, pool.Directories.Unfit)
	// The pool promises no more than it has.
	require.ErrorIs(t, m.tryMount(directorySpec("large", pool.Free), m.target("large")), lvm.ErrNoSpace)
	require.ErrorIs(t, m.tryMount(specOf(string(testDirectories), volume.GiB), m.target("pool")), ErrRefused)
}

// makesFilesWhile checks that XFS creates files while that much is free, and logs with how much it does not:
// it reserves room for the worst case of a file.
func (m *machine) makesFilesWhile(free volume.Bytes) {
	m.t.Helper()
	dir := m.mount(directorySpec("room", volume.MiB), "room")
	f, err := os.Create(dir + "/file")
	require.NoError(m.t, err)
	left := volume.MiB
	for ; left > 0; left -= 4 * volume.KiB {
		if err := os.WriteFile(dir+"/new", nil, 0o600); err != nil {
			require.ErrorIs(m.t, err, syscall.ENOSPC)
			break
		}
		require.NoError(m.t, os.Remove(dir+"/new"))
		_, err = f.Write(make([]byte, 4*volume.KiB))
		require.NoError(m.t, errors.Join(err, f.Sync()))
	}
	require.NoError(m.t, f.Close())
	m.t.Logf("with %s left no file can be made", left)
	require.Less(m.t, left, free)
	m.unmount(dir)
}

// TestDirectoryLife: growth while mounted, the drivers' calls, and removal.
func TestDirectoryLife(t *testing.T) {
	m := newMachine(t)
	m.directories(128 * volume.MiB)
	s := directorySpec("data", volume.MiB)
	dir := m.mount(s, "pod")
	require.NoError(t, os.WriteFile(dir+"/kept", []byte("kept"), 0o600))
	require.NoError(t, m.tryMount(s, dir)) // again
	require.ErrorIs(t, m.Mount(m.ctx(), s, MountRequest{Target: m.target("other"), Alone: true}), ErrInUse)
	reader := m.target("reader")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: reader, ReadOnly: true}))
	require.ErrorIs(t, os.WriteFile(reader+"/x", nil, 0o600), unix.EROFS)
	require.NoFileExists(t, dir+"/../record") // the pod's root is its own

	require.Zero(t, WokenAt(m.stateDir))
	require.NoError(t, m.Expand(m.ctx(), s, 3*volume.MiB))
	require.NotZero(t, WokenAt(m.stateDir), "the node daemon charges it soon")
	require.NoError(t, m.growMounted(group, s.Name, dir, 5*volume.MiB))
	total, _, _ := df(t, dir)
	require.Equal(t, 5*volume.MiB, total)
	space, err := m.Space(group, s.Name, dir)
	require.NoError(t, err)
	require.Equal(t, 5*volume.MiB, space.Size)
	require.ErrorIs(t, m.Expand(m.ctx(), s, volume.GiB), lvm.ErrNoSpace)
	other := s
	other.Namespace = "another"
	require.ErrorIs(t, m.tryMount(other, m.target("another")), ErrRefused)

	ref := refOf(s)
	require.ErrorIs(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}), ErrRefused)
	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.Remove(m.ctx(), ref), ErrInUse)
	m.unmount(reader)
	m.unmount(dir)
	require.ErrorIs(t, m.tryMount(s, dir), ErrRefused)
	_, err = m.SetState(m.ctx(), group, s.Name, volume.Ready) // undelete
	require.NoError(t, err)
	m.mount(s, "pod")
	require.FileExists(t, dir+"/kept")
	total, _, _ = df(t, dir)
	require.Equal(t, 5*volume.MiB, total)
	m.unmount(dir)

	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	_, volumes := m.pool()
	require.Equal(t, volume.Unreferenced, volumes[s.Name].State)
	require.ErrorIs(t, m.RemoveDirectoryPool(m.ctx(), group, testDirectories), ErrRefused)
	require.NoError(t, m.Remove(m.ctx(), ref))
	require.NoError(t, m.Remove(m.ctx(), ref))

	// A full volume, with many directories in one, can be removed as well.
	full := directorySpec("full", volume.MinDirectory)
	fullDir := m.mount(full, "full")
	for i := range 30 {
		require.NoError(t, os.MkdirAll(fmt.Sprintf("%s/many/%d/x", fullDir, i), 0o700))
	}
	fill(t, fullDir+"/file")
	m.unmount(fullDir)
	require.NoError(t, m.Release(m.ctx(), refOf(full), volume.Unreferenced, volume.Disposal{}))

	// While the pool's tags make no sense, its volumes are unknown, and no record of them is removed.
	m.shell("lvchange --addtag flexlvm.odd=1 %s/%s; rm %s/state/volumes/%[1]s/%[2]s", group, testDirectories, m.dir)
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(full)), ErrRefused)
	require.ErrorIs(t, m.Release(m.ctx(), refOf(full), volume.Retained, volume.Disposal{}), ErrRefused)
	m.shell("lvchange --deltag flexlvm.odd=1 %s/%s", group, testDirectories)
	require.NoError(t, m.Remove(m.ctx(), refOf(full)))
	pool, volumes := m.pool()
	require.Empty(t, volumes)
	require.Equal(t, pool.Size, pool.Free)
	require.ErrorIs(t, m.tryMount(s, dir), ErrRefused) // a late call

	// If the pool is replaced, its volumes are lost, and no empty ones replace them.
	lost := directorySpec("lost", volume.MiB)
	m.unmount(m.mount(lost, "lost"))
	m.clear(testDirectories)
	_, err = m.MakeDirectoryPool(m.ctx(), group, testDirectories, 64*volume.MiB)
	require.NoError(t, err)
	require.ErrorIs(t, m.tryMount(lost, m.target("lost")), ErrLost)
	require.NoError(t, m.RemoveDirectoryPool(m.ctx(), group, testDirectories))
	require.NotContains(t, lvs(), string(testDirectories))
}

// TestDirectoryKilledAfterEveryStep kills each call after each of its steps: the next call completes it, no
// volume is visible half-made, and nothing that was handed out is lost.
func TestDirectoryKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	m.t.Cleanup(func() { m.clear(testDirectories) })
	s := directorySpec("data", volume.MiB)
	again := func(c call) {
		t.Helper()
		c.Dir, c.Spec = m.dir, s
		for c.Die = 1; c.run(t); c.Die++ {
			require.Less(t, c.Die, 30)
		}
		c.Die = 0
		require.False(t, c.run(t))
	}
	again(call{Verb: "make-pool", Size: 64 * volume.MiB})
	again(call{Verb: "remove-pool"})
	require.NotContains(t, lvs(), string(testDirectories))
	again(call{Verb: "make-pool", Size: 64 * volume.MiB})
	again(call{Verb: "make-pool", Size: 128 * volume.MiB})
	pool, _ := m.pool()
	require.Equal(t, 128*volume.MiB, pool.Free)

	dir := m.target("pod")
	for step := 1; ; step++ { // each from the beginning
		s.Name = volume.Name(fmt.Sprintf("made-%d", step))
		c := call{Dir: m.dir, Verb: "mount", Spec: s, Target: dir, Die: step}
		died := c.run(t)
		_, volumes := m.pool()
		if v, there := volumes[s.Name]; there {
			require.Empty(t, v.Problem)
		}
		c.Die = 0
		require.False(t, c.run(t))
		total, _, _ := df(t, dir)
		require.Equal(t, volume.MiB, total)
		require.Equal(t, volume.MiB, fill(t, dir+"/file"))
		m.unmount(dir)
		if !died {
			require.Greater(t, step, 8)
			break
		}
	}
	_, volumes := m.pool()
	taken := volume.Bytes(0)
	for _, v := range volumes {
		taken += v.Allocated
	}
	pool, _ = m.pool()
	require.Equal(t, pool.Size-taken, pool.Free, "something is promised to nobody")

	m.mount(s, "pod")
	again(call{Verb: "expand", Size: 2 * volume.MiB})
	total, _, _ := df(t, dir)
	require.Equal(t, 2*volume.MiB, total)
	require.FileExists(t, dir+"/file")
	for i := range 5 { // deep, and with a name that clearing uses
		require.NoError(t, os.MkdirAll(dir+"/moved-1/"+strings.Repeat("d/", i), 0o700))
	}
	m.unmount(dir)
	again(call{Verb: "release"})
	again(call{Verb: "set-state ready"})
	m.mount(s, "pod")
	require.FileExists(t, dir+"/file")
	m.unmount(dir)
	again(call{Verb: "release"})
	again(call{Verb: "remove"})
	after, left := m.pool()
	require.NotContains(t, left, s.Name)
	require.NotContains(t, left, s.Name.Doomed())
	require.Equal(t, pool.Free+volume.DirectorySize(volume.MiB, 0), after.Free)
}

// TestManyDirectories: a node creates many volumes in little time, and each keeps its size; a thousand of
// them in full mode.
func TestManyDirectories(t *testing.T) {
	m := newMachine(t)
	m.directories(640 * volume.MiB)
	n := 100
	if inFull() {
		n = 1000
	}
	first := time.Duration(0)
	began := time.Now()
	for i := range n {
		at := time.Now()
		s := directorySpec(fmt.Sprintf("small-%d", i), volume.MinDirectory)
		m.mount(s, string(s.Name))
		if i == 0 {
			first = time.Since(at)
		}
	}
	all := time.Since(began)
	began = time.Now()
	pool, volumes := m.pool()
	listed := time.Since(began)
	require.Len(t, volumes, n)
	require.Empty(t, pool.Directories.Unfit)
	for _, i := range []int{0, n / 2, n - 1} {
		dir := filepath.Join(m.dir, "pods", fmt.Sprintf("small-%d", i))
		require.Equal(t, volume.MinDirectory, fill(t, dir+"/file"))
	}
	again := time.Now()
	for i := range 20 {
		dir := filepath.Join(m.dir, "pods", fmt.Sprintf("small-%d", i))
		m.unmount(dir)
		m.mount(directorySpec(fmt.Sprintf("small-%d", i), volume.MinDirectory), fmt.Sprintf("small-%d", i))
	}
	remount := time.Since(again) / 20
	lv := time.Now()
	for i := range 5 {
		m.mount(m.volume(fmt.Sprintf("lv-%d", i), volume.MinDirectory), fmt.Sprintf("lv-%d", i))
	}
	t.Logf("a new directory volume: the first %s, %s on average over %d; unmounted and mounted again %s; an inventory of them %s; a new logical volume %s",
		first, all/time.Duration(n), n, remount, listed, time.Since(lv)/5)
}
