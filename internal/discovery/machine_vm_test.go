//go:build vm

package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	utilsexec "k8s.io/utils/exec"

	blank "github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lvm"
)

// callVariable passes a call to the process that a test is going to kill.
const callVariable = "FLEXLVM_TEST_CLEAN"

// A call is a cleaning in a process of its own.
type call struct {
	Found        Found
	Class        Class
	Entry        Entry
	Bytes, Files int64 // per second
	Ledger       string
}

func TestMain(m *testing.M) {
	text := os.Getenv(callVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var c call
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = NewMachine(utilsexec.New(), c.Bytes, c.Files, lvm.CheckNoUsers).Clean(context.Background(), c.Found, c.Class, c.Entry, func(offset int64) error {
			c.Entry.Offset = offset
			return Ledger{c.Found.Disk: c.Entry}.Write(c.Ledger)
		})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// killedAfter runs the call, kills it after d, and returns the entry that it has recorded.
func (c call) killedAfter(t *testing.T, d time.Duration) Entry {
	t.Helper()
	c.Ledger = filepath.Join(t.TempDir(), "ledger.json")
	text, err := json.Marshal(c)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), callVariable+"="+string(text))
	var said bytes.Buffer
	cmd.Stdout = &said
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit, "it is done before it is killed")
	require.Equal(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(), said.String())
	l, err := ReadLedger(c.Ledger)
	require.NoError(t, err)
	return l[c.Found.Disk]
}

func shell(t *testing.T, format string, args ...any) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", fmt.Sprintf(format, args...)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// disks returns two disks with serial numbers that may be wiped.
func disks(t *testing.T) []string {
	t.Helper()
	all := strings.Fields(os.Getenv("FLEXLVM_TEST_DISKS"))
	require.Len(t, all, 2, "FLEXLVM_TEST_DISKS has to name two disks that may be wiped; run `make test-vm`")
	return all
}

// found1 finds the one entry of a directory.
func found1(t *testing.T, m *Machine, c Class) Found {
	t.Helper()
	all, unseen, err := m.Find(t.Context(), []Class{c})
	require.Empty(t, unseen)
	require.NoError(t, err)
	require.Len(t, all, 1)
	return all[0]
}

func offerable(t *testing.T, m *Machine, f Found, c Class, e Entry) error {
	t.Helper()
	_, err := m.CheckOfferable(t.Context(), f, c, e)
	return err
}

func noProgress(int64) error { return nil }

// fillTree writes files that take a while to delete.
func fillTree(t *testing.T, at string) {
	t.Helper()
	shell(t, `mkdir -p %[1]s/a/b/c; cd %[1]s/a; i=0; while [ $i -lt 2000 ]; do : >$i; i=$((i+1)); done; ln -s /etc %[1]s/a/b/etc; echo x >%[1]s/a/b/c/file`, at)
}

// In a mounted file system nothing is deleted while a part of it is mounted elsewhere or something is
// mounted in it, even if that mount appears during the deletion. A killed deletion is continued.
func TestMachineFilesystem(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "fast")
	at := filepath.Join(dir, "whole")
	shell(t, "mkdir -p %[1]s %[2]s/person; mkfs.ext4 -qF %[3]s; mount %[3]s %[1]s", at, base, disks(t)[0])
	t.Cleanup(func() { shell(t, "umount %s", at) })
	m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
	class := Class{Name: "fast", Directory: dir, Files: true}
	f := found1(t, m, class)
	require.Empty(t, f.Problem)
	require.Equal(t, "fs-"+shell(t, "blkid -p -o value -s UUID %s", disks(t)[0]), f.Disk)
	require.NoError(t, offerable(t, m, f, class, Entry{}))
	owner, err := m.Owner(f)
	require.NoError(t, err)
	e := Entry{Owner: owner}
	fillTree(t, at)
	clean := func(m *Machine) error { return m.Clean(t.Context(), f, class, e, noProgress) }
	files := func() string { return shell(t, "find %s -xdev | wc -l", at) }
	all := files()

	for what, c := range map[string]struct{ mount, umount string }{
		"a nested mount":       {"mount -t tmpfs none " + at + "/a/b/c && echo kept >" + at + "/a/b/c/kept", "grep -q kept " + at + "/a/b/c/kept && umount " + at + "/a/b/c"},
		"a file of the host":   {"mount --bind /etc/hostname " + at + "/a/7", "umount " + at + "/a/7"},
		"the same, elsewhere":  {"mount --bind " + at + " " + base + "/person", "umount " + base + "/person"},
		"a part, elsewhere":    {"mount --bind " + at + "/a/b " + base + "/person", "umount " + base + "/person"},
		"another over the top": {"mount -t tmpfs none " + at, "umount " + at},
	} {
		shell(t, "%s", c.mount)
		require.Error(t, clean(m), what)
		shell(t, "%s", c.umount)
		require.Equal(t, all, files(), what)
	}

	// The kernel itself protects a mount that appears between two checks.
	shell(t, "mkdir %[1]s/zz; mount -t tmpfs none %[1]s/zz; echo kept >%[1]s/zz/kept", at)
	require.ErrorContains(t, deleteFiles(t.Context(), f, nil, newRateLimiter(0), nobody), "something is mounted there")
	require.Equal(t, "kept", shell(t, "cat %s/zz/kept", at))
	shell(t, "umount %[1]s/zz; rm -r %[1]s/*", at)

	fillTree(t, at)
	ended := make(chan error, 1)
	go func() { ended <- clean(NewMachine(utilsexec.New(), 0, 300, lvm.CheckNoUsers)) }()
	require.Eventually(t, func() bool { return files() != all }, time.Minute, 10*time.Millisecond)
	shell(t, "mount --bind %s %s/person", at, base)
	require.ErrorContains(t, <-ended, base+"/person as well")
	left, err := strconv.Atoi(files()) // any of them: the file system chooses which is deleted first
	require.NoError(t, err)
	require.Greater(t, left, 100, "it ends before most is gone")
	shell(t, "umount %s/person", base)

	call{Found: f, Class: class, Entry: e, Files: 300}.killedAfter(t, time.Second)
	require.Error(t, m.CheckEmpty(f, nil))
	shell(t, "chmod 777 %[1]s; chown 7:7 %[1]s", at)
	require.NoError(t, clean(m))
	require.NoError(t, m.CheckEmpty(f, nil))
	require.Equal(t, "755 0", shell(t, "stat -c '%%a %%u' %s", at))
	require.DirExists(t, "/etc")

	// The file system is created again and mounted before the next check.
	shell(t, "umount %[1]s; mkfs.ext4 -qF %[2]s; mount %[2]s %[1]s; echo kept >%[1]s/kept", at, disks(t)[0])
	require.ErrorContains(t, clean(m), "was found")
	require.FileExists(t, at+"/kept")

	// After a bind mount is unmounted, a directory of the same file system is at its path.
	shell(t, "cd %s; mkdir -p src bind/one; echo kept >bind/one/kept; mount --bind src bind/one; touch src/file", at)
	bound := Class{Name: "bound", Directory: at + "/bind", Files: true, Sharing: BindMounts}
	part := found1(t, m, bound)
	require.Empty(t, part.Problem)
	shell(t, "umount %s/bind/one", at)
	require.ErrorContains(t, m.Clean(t.Context(), part, bound, Entry{}, noProgress), "the directory or mount is not the one")
	require.ErrorContains(t, deleteFiles(t.Context(), part, nil, newRateLimiter(0), nobody), "the directory or mount is not the one")
	shell(t, "cd %s; test -e bind/one/kept; test -e src/file; mount --bind src bind/one", at)
	require.NoError(t, m.Clean(t.Context(), found1(t, m, bound), bound, Entry{}, noProgress))
	shell(t, "cd %s; test -e bind/one || exit 1; test ! -e src/file; umount bind/one; test -e bind/one/kept", at)
}

// pattern fills a disk with data that is not zero.
func pattern(t *testing.T, disk string) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	require.NoError(t, err)
	block := bytes.Repeat([]byte("data"), 1<<18)
	for err == nil {
		_, err = f.Write(block)
	}
	require.True(t, errors.Is(err, syscall.ENOSPC) || errors.Is(err, io.ErrShortWrite), err)
	require.NoError(t, f.Close())
}

// A disk behind a link is not erased while it is in use. A killed erasure continues at its offset, and
// at the end every byte is zero.
func TestMachineDevice(t *testing.T) {
	base := t.TempDir()
	dir, disk, other := filepath.Join(base, "raw"), disks(t)[1], disks(t)[0]
	link := filepath.Join(dir, "one")
	shell(t, "wipefs -qa %[1]s; mkdir -p %[2]s %[3]s/person; ln -s %[1]s %[4]s", disk, dir, base, link)
	m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
	class := Class{Name: "raw", Directory: dir, Block: true, Device: Zero}
	f := found1(t, m, class)
	require.Empty(t, f.Problem)
	require.NotEmpty(t, f.Disk)
	require.NoError(t, offerable(t, m, f, class, Entry{}))
	clean := func() error { return m.Clean(t.Context(), f, class, Entry{}, noProgress) }

	shell(t, "mkfs.ext4 -qF %[1]s; mount %[1]s %[2]s/person; touch %[2]s/person/file", disk, base)
	require.ErrorContains(t, clean(), "person")
	require.Error(t, offerable(t, m, f, class, Entry{}))
	shell(t, "test -e %[1]s/person/file; umount %[1]s/person", base)
	open, err := os.Open(disk)
	require.NoError(t, err)
	require.ErrorContains(t, clean(), "has it open")
	require.NoError(t, open.Close())
	loop := shell(t, "losetup --show -f %s", disk)
	require.ErrorContains(t, clean(), "is made of it")
	shell(t, "losetup -d %[1]s; wipefs -qa %[2]s; pvcreate -qqy %[2]s", loop, disk)
	require.ErrorContains(t, clean(), "LVM2_member")
	require.ErrorContains(t, offerable(t, m, f, class, Entry{}), "LVM2_member")
	shell(t, "pvremove -qqy %[1]s; echo key | cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 %[1]s -", disk)
	require.ErrorContains(t, offerable(t, m, f, class, Entry{}), "crypto_LUKS")
	require.NoError(t, checkSignatures(t.Context(), utilsexec.New(), disk, isMember), "a tenant may have encrypted it")
	shell(t, "wipefs -qa %s; ln -sfn %s %s", disk, other, link)
	require.ErrorContains(t, clean(), "the device is not the one")
	require.NotEqual(t, f.Disk, found1(t, m, class).Disk)
	shell(t, "ln -sfn %s %s", disk, link)

	// Raw data has no signature, so kubelet would format the disk.
	pattern(t, disk)
	files := class
	files.Block = false
	require.ErrorContains(t, offerable(t, m, f, files, Entry{}), "kubelet would format it")
	require.NoError(t, offerable(t, m, f, class, Entry{}))
	held, err := os.OpenFile(disk, os.O_RDONLY|unix.O_EXCL, 0)
	require.NoError(t, err)
	unseen := checkKubeletFormat(disk, content{}, files, Entry{})
	require.ErrorContains(t, unseen, "it is in use")
	require.NotErrorIs(t, unseen, blank.ErrNotZero, "nobody has seen data, so nothing is withdrawn")
	require.NoError(t, held.Close())
	require.Error(t, m.CheckEmpty(f, nil))
	was := call{Found: f, Class: class, Bytes: 32 << 20}.killedAfter(t, 4*time.Second)
	require.Positive(t, was.Offset)
	require.Error(t, m.CheckEmpty(f, nil))
	require.Equal(t, "data", shell(t, "head -c 4 %s", disk), "what tells that it is not blank goes last")
	require.NoError(t, m.Clean(t.Context(), f, class, was, noProgress))
	shell(t, "cmp -n %d %s /dev/zero", f.Size, disk)
	require.NoError(t, m.CheckEmpty(f, nil))
	require.NoError(t, offerable(t, m, f, files, Entry{}))
	shell(t, "mkfs.ext4 -qF %s", disk)
	filesystem, err := m.CheckOfferable(t.Context(), f, files, Entry{})
	require.NoError(t, err, "there is something that kubelet does not format")
	require.Equal(t, "fs-"+shell(t, "blkid -p -o value -s UUID %s", disk), filesystem)

	pattern(t, disk)
	class.Device = Discard
	if err := clean(); err != nil {
		require.ErrorContains(t, err, "cleanDevice: Zero")
	} else {
		require.Empty(t, shell(t, "wipefs -n %s", disk))
		require.NoError(t, offerable(t, m, f, files, Entry{Volume: "pv", Cleaned: []string{"pv"}, Erasure: Discard}))
	}
	shell(t, "blkdiscard -z %s", disk)
}

// If several disks have one ID, none of them is erased, however late the second one appears.
func TestMachineDeviceWithACopy(t *testing.T) {
	dir, disk := filepath.Join(t.TempDir(), "raw"), disks(t)[1]
	shell(t, "wipefs -qa %[1]s; mkdir %[2]s; ln -s %[1]s %[2]s/one; echo kept | dd of=%[1]s conv=notrunc status=none", disk, dir)
	t.Cleanup(func() { shell(t, "blkdiscard -z %s", disk) })
	m := NewMachine(utilsexec.New(), 0, 0, lvm.CheckNoUsers)
	class := Class{Name: "raw", Directory: dir, Block: true, Device: Zero}
	f := found1(t, m, class)
	require.Empty(t, f.Problem)
	list := kernelHost.Disks
	t.Cleanup(func() { kernelHost.Disks = list })
	kernelHost.Disks = func() ([]blank.Disk, error) {
		return []blank.Disk{{Path: "/dev/one", ID: f.Disk}, {Path: "/dev/copy", ID: f.Disk}}, nil
	}
	require.ErrorContains(t, m.Clean(t.Context(), f, class, Entry{}, noProgress), "/dev/one and /dev/copy report the same ID, "+f.Disk)
	require.Equal(t, "kept", shell(t, "head -c 4 %s", disk))
	kernelHost.Disks = list
	require.NoError(t, m.Clean(t.Context(), f, class, Entry{}, noProgress))
}
