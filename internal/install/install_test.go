package install

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// kubelet finds the driver of a PersistentVolume by this name alone.
func TestNameOfTheDriversDirectory(t *testing.T) {
	require.Equal(t, strings.Replace(pv.Driver, "/", "~", 1), driverDir)
	require.Equal(t, filepath.Base(pv.Driver), driverFile)
}

func place(t *testing.T) Place {
	t.Helper()
	p, err := At(filepath.Join(t.TempDir(), "exec"))
	require.NoError(t, err)
	return p
}

func binary(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "binary")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

func install(t *testing.T, p Place, content string) (changed bool) {
	t.Helper()
	changed, err := p.Install(context.Background(), binary(t, content))
	require.NoError(t, err)
	return changed
}

// requireInstalled checks that the driver is installed complete and that nothing else is in its
// directory.
func requireInstalled(t *testing.T, p Place, content string) {
	t.Helper()
	got, err := os.ReadFile(p.Driver())
	require.NoError(t, err)
	require.True(t, string(got) == content, "content differs")
	info, err := os.Lstat(p.Driver())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode())
	entries, err := os.ReadDir(p.Dir())
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestInstall(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 3<<16) // many chunks
	for name, c := range map[string]struct {
		before  func(t *testing.T, p Place)
		content string
		changed bool
	}{
		"fresh":                {func(*testing.T, Place) {}, large, true},
		"empty binary":         {func(*testing.T, Place) {}, "", true},
		"the same":             {func(t *testing.T, p Place) { install(t, p, large) }, large, false},
		"upgrade":              {func(t *testing.T, p Place) { install(t, p, "old") }, large, true},
		"same size":            {func(t *testing.T, p Place) { install(t, p, large[:len(large)-1]+"X") }, large, true},
		"cut short":            {func(t *testing.T, p Place) { install(t, p, large[:1<<20]) }, large, true},
		"not executable":       {func(t *testing.T, p Place) { install(t, p, large); require.NoError(t, os.Chmod(p.Driver(), 0o644)) }, large, true},
		"a crash's rest":       {func(t *testing.T, p Place) { mkdir(t, p); write(t, p.temp(), "half") }, large, true},
		"a crash's rest, done": {func(t *testing.T, p Place) { install(t, p, large); write(t, p.temp(), "half") }, large, false},
		"a link": {func(t *testing.T, p Place) {
			mkdir(t, p)
			require.NoError(t, os.Symlink(binary(t, large), p.Driver()))
		}, large, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := place(t)
			c.before(t, p)
			require.Equal(t, c.changed, install(t, p, c.content))
			requireInstalled(t, p, c.content)
		})
	}
}

func mkdir(t *testing.T, p Place) { require.NoError(t, os.MkdirAll(p.Dir(), 0o755)) }

func write(t *testing.T, file, content string) {
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

func TestInstallRefuses(t *testing.T) {
	_, err := At("exec")
	require.ErrorContains(t, err, "not absolute")

	p := place(t)
	require.NoError(t, os.MkdirAll(p.Driver(), 0o755))
	_, err = p.Install(context.Background(), binary(t, "x"))
	require.ErrorContains(t, err, "is a directory; remove it")

	_, err = place(t).Install(context.Background(), "/does/not/exist")
	require.ErrorContains(t, err, "no such file")

	blocked := place(t)
	write(t, blocked.PluginDir(), "a file")
	_, err = blocked.Install(context.Background(), binary(t, "x"))
	require.ErrorContains(t, err, "is the plugin directory writable")
}

// TestInstallIsAtomic checks that a reader sees either version complete while several installers
// compete.
func TestInstallIsAtomic(t *testing.T) {
	p := place(t)
	versions := []string{strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20)}
	files := []string{binary(t, versions[0]), binary(t, versions[1])}
	install(t, p, versions[0])
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for range 5 {
				if _, err := p.Install(ctx, files[i%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		default:
		}
		got, err := os.ReadFile(p.Driver())
		require.NoError(t, err)
		require.True(t, bytes.Equal(got, []byte(versions[0])) || bytes.Equal(got, []byte(versions[1])), "half a driver")
	}
	entries, err := os.ReadDir(p.Dir())
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// TestKubeletNoticesOnce checks that an installation causes one event on a name without a leading dot
// and a repetition none, because kubelet calls the driver for every such event.
func TestKubeletNoticesOnce(t *testing.T) {
	p := place(t)
	mkdir(t, p)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	// What fsnotify watches for.
	const events = unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_ATTRIB | unix.IN_MODIFY | unix.IN_DELETE
	_, err = unix.InotifyAddWatch(fd, p.Dir(), events)
	require.NoError(t, err)

	require.True(t, install(t, p, "one"))
	require.Equal(t, []uint32{unix.IN_MOVED_TO}, visible(t, fd))
	require.False(t, install(t, p, "one"))
	require.Empty(t, visible(t, fd))
	require.True(t, install(t, p, "two"))
	require.Equal(t, []uint32{unix.IN_MOVED_TO}, visible(t, fd))
}

// visible returns the events on names without a leading dot.
func visible(t *testing.T, fd int) []uint32 {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err == unix.EAGAIN {
		return nil
	}
	require.NoError(t, err)
	var masks []uint32
	for at := 0; at < n; {
		head := buf[at : at+unix.SizeofInotifyEvent]
		mask := uint32(head[4]) | uint32(head[5])<<8 | uint32(head[6])<<16 | uint32(head[7])<<24
		length := int(head[12]) | int(head[13])<<8
		name := strings.TrimRight(string(buf[at+unix.SizeofInotifyEvent:at+unix.SizeofInotifyEvent+length]), "\x00")
		if !strings.HasPrefix(name, ".") {
			masks = append(masks, mask)
		}
		at += unix.SizeofInotifyEvent + length
	}
	return masks
}

func TestLockHasADeadline(t *testing.T) {
	p := place(t)
	mkdir(t, p)
	release, err := p.lock(context.Background())
	require.NoError(t, err)
	defer release()
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Millisecond)
	defer cancel()
	_, err = p.Install(ctx, binary(t, "x"))
	require.ErrorContains(t, err, "another installer holds it")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestGuard(t *testing.T) {
	ctx := context.Background()
	p := place(t)
	mine := binary(t, "mine")
	_, err := p.Install(ctx, mine)
	require.NoError(t, err)
	require.NoError(t, os.Remove(p.Driver()))
	g, err := p.Guard(mine)
	require.NoError(t, err, "it has gone already")
	check := func(changed bool) {
		t.Helper()
		got, err := g.Check(ctx)
		require.NoError(t, err)
		require.Equal(t, changed, got)
		requireInstalled(t, p, "mine")
	}
	check(true)
	check(false)
	require.NoError(t, os.Remove(p.Driver()))
	check(true)
	require.NoError(t, os.RemoveAll(p.PluginDir()))
	check(true)
	write(t, p.Driver(), "hurt") // in place, so the file keeps its inode
	check(true)

	// A file that Check itself wrote is not another installation's, whichever step failed afterwards.
	g.binary = "/proc/version" // it reports size 0, so less is copied than it contains
	_, err = g.Check(ctx)
	require.ErrorContains(t, err, "does not hold what was written")
	g.binary = mine
	check(true)

	require.True(t, install(t, p, "newer"))
	_, err = g.Check(ctx)
	require.ErrorIs(t, err, ErrReplaced)
	requireInstalled(t, p, "newer")
}

// Another installation's driver that arrives while Check compares its own or waits for the lock stays.
func TestGuardLeavesWhatComesMeanwhile(t *testing.T) {
	ctx := context.Background()
	p := place(t)
	mine := binary(t, "mine")
	_, err := p.Install(ctx, mine)
	require.NoError(t, err)
	g, err := p.Guard(mine)
	require.NoError(t, err)
	release, err := p.lock(ctx)
	require.NoError(t, err)
	checked := make(chan error)
	go func() {
		_, err := g.Check(ctx)
		checked <- err
	}()
	require.Eventually(t, func() bool { return waitsForLock(t, p) }, time.Minute, time.Millisecond)
	foreign := filepath.Join(p.Dir(), ".foreign")
	write(t, foreign, "newer")
	require.NoError(t, os.Rename(foreign, p.Driver()))
	release()
	require.ErrorIs(t, <-checked, ErrReplaced)
	for range 2 {
		_, err = g.Check(ctx)
		require.ErrorIs(t, err, ErrReplaced)
	}
	there, err := os.ReadFile(p.Driver())
	require.NoError(t, err)
	require.Equal(t, "newer", string(there))
}

// A driver that another installation put in place is logged once, with what to do: the probe of the pod refers to the log.
func TestReplacedDriverIsLogged(t *testing.T) {
	p := place(t)
	mine := binary(t, "mine")
	_, err := p.Install(t.Context(), mine)
	require.NoError(t, err)
	g, err := p.Guard(mine)
	require.NoError(t, err)
	var logged bytes.Buffer
	log := logrus.New()
	log.SetOutput(&logged)
	k := keeper{guard: g, log: log}
	k.check(t.Context())
	require.Empty(t, logged.String())
	require.True(t, install(t, p, "newer"))
	for range 3 {
		k.check(t.Context())
	}
	require.Equal(t, 1, strings.Count(logged.String(), "\n"), logged.String())
	require.Contains(t, logged.String(), "level=warning")
	require.Contains(t, logged.String(), "the driver was replaced by another installation, which stays; delete this pod to install its driver again")
	require.ErrorContains(t, p.Verify(t.Context(), mine, nil), "if another installation has replaced it, delete this pod to install its driver again")
}

// waitsForLock reports whether this process has the driver's directory open twice: one of the two open
// files holds the lock.
func waitsForLock(t *testing.T, p Place) bool {
	t.Helper()
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	n := 0
	for _, fd := range open {
		if at, err := os.Readlink(fd); err == nil && at == p.Dir() {
			n++
		}
	}
	return n == 2
}

func TestUninstall(t *testing.T) {
	ctx := context.Background()
	p := place(t)
	changed, err := p.Uninstall(ctx)
	require.NoError(t, err)
	require.False(t, changed, "there was none")

	install(t, p, "x")
	write(t, p.temp(), "half")
	changed, err = p.Uninstall(ctx)
	require.NoError(t, err)
	require.True(t, changed)
	require.NoDirExists(t, p.Dir())
	require.DirExists(t, p.PluginDir())

	install(t, p, "x")
	write(t, filepath.Join(p.Dir(), "notes"), "mine")
	names, err := p.Foreign()
	require.NoError(t, err)
	require.Equal(t, []string{"notes"}, names)
	_, err = p.Uninstall(ctx)
	require.ErrorContains(t, err, "are not flexlvm's")
	require.NoFileExists(t, p.Driver())
	require.FileExists(t, filepath.Join(p.Dir(), "notes"))
}

func TestMounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	write(t, file, strings.Join([]string{
		"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw",
		"90 22 253:3 / /var/lib/kubelet/pods/0f1/volumes/flexlvm.io~flexlvm/pvc-1 rw,relatime shared:7 - xfs /dev/mapper/flexlvm-pvc--1 rw,prjquota",
		"91 22 253:4 / /data/kubelet/pods/0f2/volumes/flexlvm.io~flexlvm/with\\040space rw shared:8 - xfs /dev/mapper/flexlvm-pvc--2 rw,prjquota",
		"92 22 253:4 / /var/lib/kubelet/pods/0f2/volumes/kubernetes.io~csi/pvc-3/mount rw shared:8 - xfs /dev/sdb rw",
		"93 22 0:44 / /srv/flexlvm.io~flexlvm/x rw - tmpfs tmpfs rw",
		"94 22 253:4 " + strings.Repeat("/long", 20_000) + " /var/lib/kubelet/pods/0f2/volume-subpaths/v/c/0 rw shared:8 - xfs /dev/mapper/flexlvm-pvc--2 rw",
		"95 22 253:5 / /var/lib/kubelet/pods/0f4/volumes/flexlvm.io~flexlvm/pvc-4 rw shared:9 - xfs /dev/mapper/flexlvm-pvc--4 rw,prjquota", "",
	}, "\n"))
	got, err := Mounted(file)
	require.NoError(t, err)
	require.Equal(t, []string{
		"/var/lib/kubelet/pods/0f1/volumes/flexlvm.io~flexlvm/pvc-1",
		"/data/kubelet/pods/0f2/volumes/flexlvm.io~flexlvm/with space",
		"/var/lib/kubelet/pods/0f4/volumes/flexlvm.io~flexlvm/pvc-4",
	}, got)
	err = Refusal(append(got[:2], "/a", "/b"))
	require.ErrorIs(t, err, ErrMounted)
	require.ErrorContains(t, err, "/a and 1 more; kubelet needs the driver")

	_, err = Mounted(filepath.Join(t.TempDir(), "none"))
	require.Error(t, err)
}

func TestHostMounts(t *testing.T) {
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "self/ns"), 0o755))
	link := filepath.Join(proc, "self/ns/pid")
	require.NoError(t, os.Symlink("pid:[4026532001]", link))
	_, err := HostMounts(proc)
	require.ErrorContains(t, err, "hostPID: true")
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("pid:[4026531836]", link))
	file, err := HostMounts(proc)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(proc, "1/mountinfo"), file)
	_, err = HostMounts(t.TempDir())
	require.Error(t, err)
}

func TestEvery(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	Every(ctx, time.Millisecond, func() {
		if n++; n == 3 {
			cancel()
		}
	})
	require.Equal(t, 3, n)
}
