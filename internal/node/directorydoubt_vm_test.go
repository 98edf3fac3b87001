//go:build vm

package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// opened calls f with the test's pool.
func (m *machine) opened(f func(p *directoryPool) error) {
	m.t.Helper()
	require.NoError(m.t, m.withPool(m.ctx(), group, testDirectories, f))
}

// projectOf returns the project of a volume.
func (m *machine) projectOf(n volume.Name) (id quota.Project) {
	m.t.Helper()
	m.opened(func(p *directoryPool) error {
		_, rec, err := p.read(n)
		id = rec.Project
		return err
	})
	return id
}

// loseQuota removes volumes' limits, as xfs_repair does if it cannot read them.
func (m *machine) loseQuota(names ...volume.Name) {
	m.t.Helper()
	for _, n := range names {
		id := m.projectOf(n)
		m.opened(func(p *directoryPool) error { return quota.SetOf(p.device.Path, id, quota.Limit{}) })
	}
}

// A volume is in use as long as any process has it mounted, in any mount namespace.
func TestDirectoryInAnotherNamespace(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	s := directorySpec("data", volume.MiB)
	dir := m.mount(s, "pod")
	held := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "600")
	require.NoError(t, held.Start())
	ended := false
	end := func() {
		if !ended {
			ended = true
			require.NoError(t, held.Process.Kill())
			_ = held.Wait()
		}
	}
	defer end()
	ours, err := os.Readlink("/proc/self/ns/mnt")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		others, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", held.Process.Pid))
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", held.Process.Pid))
		return err == nil && others != ours && string(comm) == "sleep\n"
	}, time.Minute, 10*time.Millisecond)
	m.unmount(dir)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	_, volumes := m.pool()
	require.True(t, volumes[s.Name].Open)
	require.Empty(t, volumes[s.Name].Mounts)
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrInUse)
	_, volumes = m.pool()
	require.Equal(t, volume.Unreferenced, volumes[s.Name].State)
	end()
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	_, volumes = m.pool()
	require.Empty(t, volumes)
}

// If the kernel has lost quotas, the recorded promises still count, and the limits are restored.
func TestDirectoryQuotasThatAreLost(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	a, b := directorySpec("a", 20*volume.MiB), directorySpec("b", 20*volume.MiB)
	dir := m.mount(a, "a")
	m.unmount(m.mount(b, "b"))
	before, _ := m.pool()
	m.loseQuota(a.Name, b.Name)
	after, _ := m.pool()
	require.Equal(t, before.Free, after.Free, "the room of volumes was offered once more")
	total, _, _ := df(t, dir)
	require.Equal(t, 20*volume.MiB, total)

	m.loseQuota(b.Name)
	const nobody = 5000 // a limit without a volume, as after a person has removed one
	m.opened(func(p *directoryPool) error {
		return quota.SetOf(p.device.Path, nobody, quota.Limit{Size: volume.MiB, Inodes: 64})
	})
	require.ErrorIs(t, m.tryMount(directorySpec("c", 30*volume.MiB), m.target("c")), lvm.ErrNoSpace)
	m.opened(func(p *directoryPool) error {
		all, err := quota.Projects(p.device.Path)
		require.NotContains(t, all, quota.Project(nobody))
		return err
	})
	var whole []byte
	m.loseQuota(b.Name)
	m.opened(func(p *directoryPool) (err error) {
		whole, err = os.ReadFile(p.Name() + "/" + path.Join(volumePath(b.Name), recordFile))
		return errors.Join(err, p.WriteFile(path.Join(volumePath(b.Name), recordFile), []byte("{"), 0o600))
	})
	require.ErrorContains(t, m.tryMount(directorySpec("c", volume.MiB), m.target("c")), "was promised is not known")
	require.Error(t, m.Remove(m.ctx(), refOf(b)))
	m.opened(func(p *directoryPool) error {
		return p.WriteFile(path.Join(volumePath(b.Name), recordFile), whole, 0o600)
	})
	require.Equal(t, 20*volume.MiB, fill(t, m.mount(b, "b")+"/file"))

	// No project is used twice.
	m.unmount(dir)
	first, second := m.projectOf(a.Name), m.projectOf(b.Name)
	require.Greater(t, second, first)
	require.NoError(t, m.Release(m.ctx(), refOf(a), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(a)))
	d := directorySpec("d", volume.MiB)
	m.unmount(m.mount(d, "d"))
	require.Greater(t, m.projectOf(d.Name), second)
}

// A pool that cannot be observed does not count as empty: nothing in it is forgotten or removed, and the rest
// of its group works as usual.
func TestDirectoryPoolThatIsNotRead(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	s := directorySpec("data", volume.MiB)
	dir := m.mount(s, "pod")
	require.NoError(t, os.WriteFile(dir+"/kept", []byte("kept"), 0o600))
	m.unmount(dir)
	ordinary := m.volume("ordinary", 64*volume.MiB)
	m.unmount(m.mount(ordinary, "ordinary"))
	require.NoError(t, m.Release(m.ctx(), refOf(ordinary), volume.Unreferenced, volume.Disposal{}))

	elsewhere := m.target("elsewhere")
	m.shell("mount -o noquota /dev/mapper/%s %s", volume.DeviceName(group, testDirectories), elsewhere)
	pool, volumes := m.pool()
	require.Empty(t, volumes)
	require.True(t, pool.VolumesUnknown())
	require.Zero(t, pool.Free)
	require.Contains(t, pool.Directories.Unfit, "project quota is not enforced")
	for _, err := range []error{
		m.tryMount(s, dir),
		m.Release(m.ctx(), refOf(s), volume.Retained, volume.Disposal{}),
		m.Release(m.ctx(), refOf(directorySpec("never", volume.MiB)), volume.Unreferenced, volume.Disposal{}),
		m.Remove(m.ctx(), refOf(s)),
		m.RemoveDirectoryPool(m.ctx(), group, testDirectories),
	} {
		require.ErrorContains(t, err, "project quota is not enforced")
	}
	require.NoError(t, m.Remove(m.ctx(), refOf(ordinary)))
	require.NotContains(t, lvs(), "ordinary")
	m.shell("umount %s", elsewhere)

	// As after vgcfgrestore of a backup from the time of its creation.
	m.shell("lvchange --deltag %s --addtag %s %s/%s", volume.Ready.Tag(), volume.Creating.Tag(), group, testDirectories)
	require.ErrorIs(t, m.RemoveDirectoryPool(m.ctx(), group, testDirectories), ErrRefused)
	size, err := m.MakeDirectoryPool(m.ctx(), group, testDirectories, 64*volume.MiB)
	require.NoError(t, err)
	require.Equal(t, 64*volume.MiB, size)
	require.FileExists(t, m.mount(s, "pod")+"/kept")
	m.unmount(dir)

	// A pool cannot have the name of a volume that this node has on record.
	require.ErrorIs(t, m.RemoveDirectoryPool(m.ctx(), group, s.Name), ErrRefused)
	_, err = m.MakeDirectoryPool(m.ctx(), group, s.Name, 64*volume.MiB)
	require.ErrorIs(t, err, ErrRefused)
	require.FileExists(t, m.mount(s, "pod")+"/kept")
	m.unmount(dir)
	require.ErrorIs(t, m.RemoveAll(m.ctx(), []Ref{refOf(s), refOf(s)})[0], ErrRefused, "it is ready")

	// A grown pool holds what it promises.
	_, err = m.MakeDirectoryPool(m.ctx(), group, testDirectories, 600*volume.MiB)
	require.NoError(t, err)
	pool, _ = m.pool()
	large := directorySpec("large", directorySpec("large", 0).HeldBy(pool.Free))
	m.mount(large, "large")
	pool, _ = m.pool()
	require.Less(t, pool.Free, volume.MiB)
	require.Empty(t, pool.Directories.Unfit)
}

// Whatever a tenant leaves in a volume is removed, but nothing that it refers to.
func TestDirectoryWithAnythingInIt(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	other, s := directorySpec("other", volume.MiB), directorySpec("data", 2*volume.MiB)
	kept := m.mount(other, "other") + "/kept"
	require.NoError(t, os.WriteFile(kept, []byte("kept"), 0o600))
	dir := m.mount(s, "pod")
	outside := m.dir + "/outside"
	require.NoError(t, os.WriteFile(outside, []byte("outside"), 0o600))
	for i := range 60 {
		require.NoError(t, os.MkdirAll(fmt.Sprintf("%s/many/%d", dir, i), 0o700))
	}
	require.NoError(t, os.MkdirAll(dir+"/append/in/it", 0o700))
	require.NoError(t, os.MkdirAll(dir+"/fixed/in/it", 0o700))
	for i, link := range []string{"..", "/", "../../other/data/kept", kept, outside, "nowhere"} {
		require.NoError(t, os.Symlink(link, fmt.Sprintf("%s/link-%d", dir, i)))
		require.NoError(t, os.Symlink(link, fmt.Sprintf("%s/fixed/in/link-%d", dir, i)))
	}
	require.NoError(t, os.WriteFile(dir+"/fixed/file", nil, 0))
	require.NoError(t, os.Link(dir+"/fixed/file", dir+"/append/hard"))
	require.NoError(t, syscall.Mkfifo(dir+"/append/pipe", 0o600))
	require.NoError(t, unix.Mknod(dir+"/device", unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	socket, err := net.Listen("unix", dir+"/socket")
	require.NoError(t, err)
	socket.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, socket.Close())
	escaped, err := os.Create(dir + "/many/escaped")
	require.NoError(t, err)
	require.NoError(t, errors.Join(quota.EnsureProjectOf(escaped, 77), escaped.Close()))
	fill(t, dir+"/file")
	m.shell("chattr +i %[1]s/fixed/file %[1]s/fixed/in %[1]s/fixed %[1]s/many/5; chattr +a %[1]s/append %[1]s/file; chattr +i %[1]s", dir)
	m.unmount(dir)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.FileExists(t, kept)
	require.FileExists(t, outside)
	pool, volumes := m.pool()
	require.Len(t, volumes, 1)
	require.Equal(t, pool.Size-other.Charge(), pool.Free)
}

// In a pool without a free block, volumes can still be released, brought back and removed, which is what
// frees space.
func TestDirectoryPoolThatIsFull(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	s, other := directorySpec("data", volume.MiB), directorySpec("other", volume.MiB)
	kept := m.mount(other, "other") + "/kept"
	require.NoError(t, os.WriteFile(kept, []byte("kept"), 0o600))
	dir := m.mount(s, "pod")
	for i := range 30 {
		require.NoError(t, os.MkdirAll(fmt.Sprintf("%s/many/%d/x", dir, i), 0o700))
	}
	require.NoError(t, os.WriteFile(dir+"/file", make([]byte, 100<<10), 0o600))
	m.unmount(dir)
	m.opened(func(p *directoryPool) error {
		fill(t, p.Name()+"/fill")
		for i := 0; ; i++ {
			if err := os.WriteFile(fmt.Sprintf("%s/fill-%d", p.Name(), i), []byte("x"), 0o600); err != nil {
				require.ErrorIs(t, err, unix.ENOSPC)
				return nil
			}
		}
	})
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	_, err := m.SetState(m.ctx(), group, s.Name, volume.Ready)
	require.NoError(t, err)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	pool, _ := m.pool()
	require.Contains(t, pool.Directories.Unfit, "less free than its quotas promise")
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	_, volumes := m.pool()
	require.Len(t, volumes, 1)
	require.FileExists(t, kept)
}

// Files that xfs_repair could not connect may be needed: their pool is not removed, and gets no new volumes.
func TestDirectoryPoolAfterRepair(t *testing.T) {
	m := newMachine(t)
	m.directories(64 * volume.MiB)
	s := directorySpec("data", volume.MiB)
	dir := m.mount(s, "pod")
	require.NoError(t, os.WriteFile(dir+"/kept", []byte("kept"), 0o600))
	m.unmount(dir)
	m.opened(func(p *directoryPool) error {
		return errors.Join(p.Mkdir(lostAndFound, 0o700), p.Rename(volumePath(s.Name), lostAndFound+"/131"))
	})
	require.ErrorContains(t, m.RemoveDirectoryPool(m.ctx(), group, testDirectories), lostAndFound)
	pool, volumes := m.pool()
	require.Contains(t, pool.Directories.Unfit, "xfs_repair")
	require.Empty(t, volumes)
	listed, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, listed, 1)
	require.Contains(t, listed[0].Problem, "takes no new volumes: xfs_repair")
	require.NoError(t, m.records.remove(s.Group, s.Name)) // as on a node that was reinstalled
	for _, s := range []volume.Spec{s, directorySpec("new", volume.MiB)} {
		require.ErrorContains(t, m.tryMount(s, m.target("pod")), "perhaps whole volumes, to lost+found")
	}
	m.opened(func(p *directoryPool) error {
		return errors.Join(p.Rename(lostAndFound+"/131", "somebodys"), p.Remove(lostAndFound))
	})
	require.ErrorContains(t, m.RemoveDirectoryPool(m.ctx(), group, testDirectories), "somebodys")
	m.opened(func(p *directoryPool) error { return p.Rename("somebodys", volumePath(s.Name)) })
	require.FileExists(t, m.mount(s, "pod")+"/kept")
}
