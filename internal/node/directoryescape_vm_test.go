//go:build vm

package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// escapeVariable names a file, whose project the process is to change.
const escapeVariable = "FLEXLVM_TEST_ESCAPE"

func escape(file string) int {
	f, err := os.Open(file)
	if err == nil {
		err = quota.EnsureProjectOf(f, 0)
	}
	if err != nil {
		fmt.Print(err)
		return 1
	}
	return 0
}

// tenant is the node's user ID of root in a user namespace of the tests.
const tenant = 100000

// runAs runs this program as a process with these attributes, and with a variable that selects its task and
// the path for it.
func runAs(t *testing.T, variable, path string, as *syscall.SysProcAttr) (string, error) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable+"="+path)
	cmd.SysProcAttr = as
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// inUserNamespace is root in a pod with hostUsers: false.
func inUserNamespace() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: tenant, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{HostID: tenant, Size: 65536}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
}

// escapeAs tries to set a file's project to 0, which has no limits.
func escapeAs(t *testing.T, file string, as *syscall.SysProcAttr) (string, error) {
	t.Helper()
	return runAs(t, escapeVariable, file, as)
}

// TestDirectoryEscape shows why only trusted pods get directory volumes: in the node's own user namespace,
// the owner of a file can move it out of its quota. In another user namespace nobody can, not even its root.
// Escaped files are noticed once other volumes would have less space than they were promised.
func TestDirectoryEscape(t *testing.T) {
	m := newMachine(t)
	m.directories(256 * volume.MiB)
	s := directorySpec("data", 64*volume.MiB)
	dir := m.mount(s, "pod")
	m.shell("chmod 711 /tmp %[1]s %[1]s/.. %[1]s/../.. %[1]s/../../.. ; chmod 755 /node.test || true; chmod 777 %[1]s", dir)
	file := func(i int) string { return fmt.Sprintf("%s/file-%d", dir, i) }
	write := func(i int) {
		t.Helper()
		f, err := os.OpenFile(file(i), os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		require.NoError(t, unix.Fallocate(int(f.Fd()), 0, 0, int64(60*volume.MiB)))
		require.NoError(t, errors.Join(f.Chown(tenant, tenant), f.Close()))
	}
	write(0)
	out, err := escapeAs(t, file(0), inUserNamespace())
	require.Error(t, err, "root in a user namespace has changed the project of his file")
	require.Contains(t, out, "invalid argument")

	for i := range 3 {
		if i > 0 {
			write(i)
		}
		out, err = escapeAs(t, file(i), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tenant, Gid: tenant}})
		require.NoError(t, err, out)
	}
	write(3)
	pool, volumes := m.pool()
	require.Len(t, volumes, 1)
	require.Empty(t, pool.Directories.Unfit) // no other volume has less space for it yet
	require.ErrorIs(t, m.tryMount(directorySpec("other", 160*volume.MiB), m.target("other")), lvm.ErrNoSpace)
	for i := range 4 {
		require.NoError(t, os.Remove(file(i)))
	}
	other := directorySpec("other", 160*volume.MiB)
	// XFS frees the space of deleted files in the background.
	require.Eventually(t, func() bool { return m.tryMount(other, m.target("other")) == nil }, 2*time.Minute, 100*time.Millisecond)
	for i := range 3 {
		write(i)
		_, err = escapeAs(t, file(i), &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: tenant, Gid: tenant}})
		require.NoError(t, err)
	}
	pool, _ = m.pool()
	require.Contains(t, pool.Directories.Unfit, "taken files out of its quota")
	m.unmount(dir)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.Eventually(t, func() bool {
		pool, _ = m.pool()
		return pool.Directories.Unfit == ""
	}, 2*time.Minute, 100*time.Millisecond, "what had escaped went with its volume")
}
