//go:build vm

package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// replica returns the specs of a replica's loader and of its readers, as in their PersistentVolumes.
func (m *machine) replica(name string, size volume.Bytes) (fills, reads volume.Spec) {
	m.t.Helper()
	fills = m.volume(name, size)
	fills.Kind = volume.Dataset
	reads = fills
	reads.ReadOnly = true
	return fills, reads
}

// TestReadersBesideTheLoader: readers read files while the loader adds others. Neither disturbs the other,
// and readers cannot write.
func TestReadersBesideTheLoader(t *testing.T) { linearAndThin(t, testReadersBesideTheLoader) }

func testReadersBesideTheLoader(t *testing.T, m *machine) {
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	loader := m.mount(fills, "loader")
	require.NoError(t, os.WriteFile(loader+"/1", []byte("first"), 0o644))
	reads.Size *= 2 // what the replicas of other nodes have grown to
	reader := m.mount(reads, "reader")
	b, err := os.ReadFile(reader + "/1")
	require.NoError(t, err)
	require.Equal(t, "first", string(b))
	require.ErrorIs(t, os.WriteFile(reader+"/x", nil, 0o600), syscall.EROFS, "although kubelet says rw")
	require.NoError(t, os.WriteFile(loader+"/2", []byte("second"), 0o600), "the loader goes on")
	require.FileExists(t, reader+"/2")
	size, _, _ := df(t, reader)
	require.Equal(t, fills.Size, size)
	require.NoError(t, m.tryMount(reads, reader), "again changes nothing")
	require.ErrorIs(t, os.WriteFile(reader+"/x", nil, 0o600), syscall.EROFS)

	another := m.mount(reads, "another")
	m.unmount(reader)
	require.True(t, isMounted(loader))
	require.True(t, isMounted(another))
	open, err := os.Open(another + "/1")
	require.NoError(t, err)
	m.unmount(loader)
	require.ErrorIs(t, m.Unmount(m.ctx(), another), mount.ErrBusy)
	require.NoError(t, open.Close())
	require.FileExists(t, another+"/2")
	loader = m.mount(fills, "loader")
	require.NoError(t, os.WriteFile(loader+"/3", nil, 0o600), "a mount of readers does not make it read-only")
	require.NoError(t, m.Expand(m.ctx(), fills, grown))
	size, _, _ = df(t, another)
	require.Equal(t, grown, size, "who fills it grows it for all")
	m.unmount(another)
	m.unmount(loader)

	// Readers first, after a boot, and without a record.
	m.shell("vgchange -an %s", group)
	require.NoError(t, m.records.remove(fills.Group, fills.Name))
	reader = m.mount(reads, "reader")
	require.FileExists(t, reader+"/3")
	loader = m.mount(fills, "loader")
	require.Equal(t, grown-2*volume.Block, allocate(t, loader+"/data"), "beside two files of a few bytes: the quota is there all the same")
}

// TestReadersGetTheCurrentVersion: each mount shows one version as of the time of the mount; versions that
// are no longer mounted are left to the loader to remove.
func TestReadersGetTheCurrentVersion(t *testing.T) { linearAndThin(t, testReadersGetTheCurrentVersion) }

func testReadersGetTheCurrentVersion(t *testing.T, m *machine) {
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	reads.Versions = true
	loader := m.mount(fills, "loader")
	versions := loader + "/.flexlvm/versions/"
	switchTo := func(number string) {
		require.NoError(t, os.MkdirAll(versions+number+"/dir", 0o755))
		require.NoError(t, os.WriteFile(versions+number+"/dir/f", []byte(number), 0o644))
		require.NoError(t, os.WriteFile(loader+"/.flexlvm/new", []byte(number+"\n"), 0o644))
		require.NoError(t, os.Rename(loader+"/.flexlvm/new", loader+"/.flexlvm/current"))
	}
	shows := func(at, number string) {
		t.Helper()
		entries, err := os.ReadDir(at)
		require.NoError(t, err)
		require.Len(t, entries, 1, "of the version alone")
		b, err := os.ReadFile(at + "/dir/f")
		require.NoError(t, err)
		require.Equal(t, number, string(b))
		require.ErrorIs(t, os.WriteFile(at+"/dir/f", nil, 0o600), syscall.EROFS)
	}
	require.NoError(t, os.WriteFile(loader+"/whole", nil, 0o644))
	none := m.mount(reads, "none")
	require.FileExists(t, none+"/whole", "it has no versions yet")
	m.unmount(none)

	switchTo("1")
	one, another := m.mount(reads, "one"), m.mount(reads, "another")
	shows(one, "1")
	require.NoError(t, m.tryMount(reads, one), "again changes nothing")
	switchTo("2")
	shows(one, "1")
	part := t.TempDir()
	m.shell("mount --bind %s/dir %s", another, part) // as kubelet does for subPath
	m.unmount(another)
	two := m.mount(reads, "two")
	shows(two, "2")
	m.unmount(loader)
	again := func() {
		loader = m.mount(fills, "loader")
	}
	again()
	require.DirExists(t, versions+"1", "a pod reads it")
	m.unmount(one)
	m.unmount(loader)
	again()
	require.DirExists(t, versions+"1", "a pod reads part of it")
	m.shell("umount %s", part)
	switchTo("3")
	for i := range 500 { // whatever else a pod has put there
		require.NoError(t, os.WriteFile(versions+strings.Repeat("x", 200)+strconv.Itoa(i), nil, 0o600))
	}
	m.unmount(loader)
	again()
	require.NoDirExists(t, versions+"1")
	require.FileExists(t, versions+"1.unread/dir/f", "the loader removes it")
	require.DirExists(t, versions+"2", "a pod reads it")
	m.unmount(two)
	m.unmount(loader)
	require.False(t, isMounted(two))
	again()
	require.DirExists(t, versions+"2.unread")
	three := m.mount(reads, "three")
	shows(three, "3")
	m.unmount(three)

	// A tenant controls the dataset: no link in it may lead readers to other directories.
	require.NoError(t, os.RemoveAll(versions+"3"))
	require.NoError(t, os.Symlink("/", versions+"3"))
	require.Error(t, m.tryMount(reads, m.target("link")))
	require.NoError(t, os.WriteFile(loader+"/.flexlvm/current", []byte("../.."), 0o644))
	require.ErrorIs(t, m.tryMount(reads, m.target("link")), ErrRefused)
	require.NoError(t, os.Remove(loader+"/.flexlvm/current"))
	require.NoError(t, syscall.Mkfifo(loader+"/.flexlvm/current", 0o644))
	writer, err := os.OpenFile(loader+"/.flexlvm/current", os.O_RDWR, 0)
	require.NoError(t, err)
	require.ErrorIs(t, m.tryMount(reads, m.target("pipe")), ErrRefused)
	require.NoError(t, writer.Close())
	require.NoError(t, os.Remove(loader+"/.flexlvm/current"))
	require.NoError(t, os.Symlink("/etc/hostname", loader+"/.flexlvm/current"))
	require.Error(t, m.tryMount(reads, m.target("link")))
	require.False(t, isMounted(m.target("link")))
	m.unmount(loader)
	m.shell("vgchange -an %s", group) // nothing holds the device
}

// Without user namespaces, only read-only remains as a protection, and that is logged with the cause.
func TestReadersWithoutAMappingOfOwners(t *testing.T) {
	m := newMachine(t)
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	loader := m.mount(fills, "loader")
	require.NoError(t, os.WriteFile(loader+"/1", []byte("whole"), 0o666))
	require.NoError(t, mount.CheckReaders())

	const most = "/proc/sys/user/max_user_namespaces"
	before, err := os.ReadFile(most)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.WriteFile(most, before, 0o644)) })
	require.NoError(t, os.WriteFile(most, []byte("0"), 0o644))
	const cause = "user.max_user_namespaces is 0"
	why := mount.CheckReaders()
	require.ErrorIs(t, why, mount.ErrNoMapping)
	require.ErrorContains(t, why, cause)

	reader := m.mount(reads, "reader")
	log, err := os.ReadFile(filepath.Join(m.dir, "log"))
	require.NoError(t, err)
	require.Contains(t, string(log), "level=warning")
	require.Contains(t, string(log), cause)
	b, err := os.ReadFile(reader + "/1")
	require.NoError(t, err)
	require.Equal(t, "whole", string(b))
	require.ErrorIs(t, os.WriteFile(reader+"/1", nil, 0o666), syscall.EROFS)
}

// A container runtime bind-mounts a mount for readers, and makes that writable for "rw". Even root cannot
// write there, and can read everything.
func TestReadersWhoseMountIsMadeWritable(t *testing.T) {
	m := newMachine(t)
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	loader := m.mount(fills, "loader")
	t.Cleanup(func() {
		log, err := os.ReadFile(filepath.Join(m.dir, "log"))
		require.NoError(t, err)
		require.NotContains(t, string(log), "level=warning", "all is as it should be")
	})
	require.NoError(t, os.Mkdir(loader+"/dir", 0o777))
	require.NoError(t, os.Chmod(loader+"/dir", 0o777))
	for _, name := range []string{"/1", "/dir/2"} {
		require.NoError(t, os.WriteFile(loader+name, []byte("whole"), 0o666))
		require.NoError(t, os.Chmod(loader+name, 0o666))
	}
	for _, beside := range []bool{true, false} { // the loader
		reader, container := m.mount(reads, "reader"), t.TempDir()
		m.shell("mount --bind %s %s && mount -o remount,bind,rw %[2]s", reader, container)
		points, err := mount.At(container)
		require.NoError(t, err)
		require.Len(t, points, 1)
		m.shell("grep ' %s rw,' /proc/self/mountinfo", container)
		for what, try := range map[string]func() error{
			"make a file":       func() error { return os.WriteFile(container+"/new", nil, 0o666) },
			"make a file below": func() error { return os.WriteFile(container+"/dir/new", nil, 0o666) },
			"make a directory":  func() error { return os.Mkdir(container+"/new", 0o777) },
			"make a link":       func() error { return os.Link(container+"/1", container+"/new") },
			"make a symlink":    func() error { return os.Symlink("1", container+"/new") },
			"write":             func() error { return os.WriteFile(container+"/1", []byte("other"), 0o666) },
			"truncate":          func() error { return os.Truncate(container+"/dir/2", 0) },
			"remove":            func() error { return os.Remove(container + "/dir/2") },
			"rename":            func() error { return os.Rename(container+"/1", container+"/new") },
			"change rights":     func() error { return os.Chmod(container+"/1", 0o600) },
			"change the owner":  func() error { return os.Chown(container+"/1", 1, 1) },
			"change times":      func() error { return os.Chtimes(container+"/1", time.Now(), time.Now()) },
			"set an attribute":  func() error { return syscall.Setxattr(container+"/1", "user.a", []byte("b"), 0) },
		} {
			require.Error(t, try(), what)
		}
		for _, name := range []string{"/1", "/dir/2"} {
			b, err := os.ReadFile(container + name)
			require.NoError(t, err)
			require.Equal(t, "whole", string(b))
		}
		m.shell("chmod 755 %s", filepath.Dir(container)) // the way there
		m.shell("su -s /bin/sh nobody -c 'ls -l %s/dir && cat %[1]s/1'", container)
		entries, err := os.ReadDir(container)
		require.NoError(t, err)
		require.Len(t, entries, 2)
		m.shell("umount %s", container)
		m.unmount(reader)
		if beside {
			require.NoError(t, os.WriteFile(loader+"/1", []byte("whole"), 0o666), "the loader writes as before")
			m.unmount(loader)
		}
	}
	loader = m.mount(fills, "loader")
	require.NoError(t, os.WriteFile(loader+"/new", nil, 0o600), "and so it does the next time")
}

func TestReadersFindNoReplica(t *testing.T) {
	m := newMachine(t)
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	target := m.target("reader")
	none := func(why string) {
		t.Helper()
		err := m.tryMount(reads, target)
		require.ErrorIs(t, err, ErrNoReplica)
		require.ErrorContains(t, err, why)
		require.False(t, isMounted(target))
	}
	none("not found")
	require.Empty(t, lvs(), "a reader makes nothing")

	// Created, and never handed out: the loader may still format it.
	tags := volume.Tags{
		State: volume.Creating, FS: "0b2f1f3e-7a34-4c58-9d0c-51b1a2c3d4e5", Size: fills.Size,
		Namespace: fills.Namespace, Cluster: fills.Cluster, Kind: volume.Dataset,
	}
	m.half(fills, tags)
	before := m.written(devicePath(fills))
	none("it is being made")
	require.Equal(t, before, m.written(devicePath(fills)))

	m.unmount(m.mount(fills, "loader"))
	m.unmount(m.mount(reads, "reader"))
	thief := reads
	thief.Namespace = "thief"
	require.ErrorIs(t, m.tryMount(thief, target), ErrRefused)

	require.NoError(t, m.Release(m.ctx(), refOf(fills), volume.Unreferenced, volume.Disposal{}))
	none("being taken back")
	require.NoError(t, m.Remove(m.ctx(), refOf(fills)))
	none("not found")
	require.Empty(t, lvs())
	m.mount(fills, "loader") // a replica may come back under its name
	require.Equal(t, volume.Ready, tagsOf(t, fills.Name).State)
}

// TestReadersStampTheLastUse: the last use determines the least recently used replica.
func TestReadersStampTheLastUse(t *testing.T) {
	m := newMachine(t)
	now := time.Now().Truncate(time.Second)
	m.now = func() time.Time { return now }
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	m.unmount(m.mount(fills, "loader"))
	lastUse := func() time.Time { return m.records.lastUsed(fills.Group, fills.Name) }
	require.Equal(t, now.UTC(), lastUse())
	now = now.Add(time.Hour)
	reader := m.mount(reads, "reader")
	require.Equal(t, now.UTC(), lastUse())
	now = now.Add(time.Hour)
	m.unmount(reader)
	require.Equal(t, now.UTC(), lastUse())
}

// TestReadersMountKilledAfterEveryStep starts without a record, and with tags that still say creating.
func TestReadersMountKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	behind(m)
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	target := m.target("reader")
	untilAlive(t, call{Dir: m.dir, Verb: "mount", Spec: reads, Target: target}, func() {
		m.clear(fills.Name)
		require.NoError(t, m.records.remove(fills.Group, fills.Name))
		loader := m.mount(fills, "loader")
		require.NoError(t, os.WriteFile(loader+"/f", []byte("kept"), 0o600))
		m.unmount(loader)
		require.Equal(t, volume.Creating, tagsOf(t, fills.Name).State)
	}, func(int) {
		require.True(t, isMounted(target))
		require.FileExists(t, target+"/f")
		require.Equal(t, volume.Ready, tagsOf(t, fills.Name).State)
	})
}

// A volume whose file system is not that of its tags is not mounted for readers.
func TestReadersOfADamagedReplica(t *testing.T) {
	m := newMachine(t)
	fills, reads := m.replica("ds-0123456789abcdef", 64*volume.MiB)
	m.unmount(m.mount(fills, "loader"))
	m.shell("dd if=/dev/zero of=%s bs=4k count=1 conv=fsync status=none", devicePath(fills))
	before := m.written(devicePath(fills))
	require.ErrorIs(t, m.tryMount(reads, m.target("reader")), ErrDamaged)
	require.Equal(t, before, m.written(devicePath(fills)))
}
