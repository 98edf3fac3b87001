package install

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const mountLine = "90 22 253:3 / /var/lib/kubelet/pods/0f1/volumes/flexlvm.io~flexlvm/pvc-1 rw,relatime shared:7 - xfs /dev/mapper/flexlvm-pvc--1 rw,prjquota\n"

// unused returns an Unused for a host whose processes and mounts are files of a directory.
func unused(t *testing.T) Unused {
	t.Helper()
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "self/ns"), 0o755))
	require.NoError(t, os.Symlink(hostPIDNamespace, filepath.Join(proc, "self/ns/pid")))
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "1"), 0o755))
	u := Unused{Place: place(t), Proc: proc, Binary: binary(t, "again")}
	u.mounts(t, "")
	install(t, u.Place, "x")
	return u
}

func (u Unused) mounts(t *testing.T, lines string) {
	t.Helper()
	write(t, filepath.Join(u.Proc, "1/mountinfo"), lines)
}

// call starts a fake process that runs the driver until end is called. As with the kernel's, the link
// to its program leads to the file even after the file is removed.
func (u Unused) call(t *testing.T) (end func()) {
	t.Helper()
	dir := filepath.Join(u.Proc, "4711")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.Link(u.Driver(), filepath.Join(dir, "exe")))
	return func() { require.NoError(t, os.RemoveAll(dir)) }
}

func TestUninstallWhatNothingNeeds(t *testing.T) {
	u := unused(t)
	changed, err := u.Uninstall(t.Context())
	require.NoError(t, err)
	require.True(t, changed)
	require.NoDirExists(t, u.Dir())
	changed, err = u.Uninstall(t.Context())
	require.NoError(t, err)
	require.False(t, changed)

	install(t, u.Place, "x")
	u.mounts(t, mountLine)
	_, err = u.Uninstall(t.Context())
	require.ErrorIs(t, err, ErrMounted)
	require.NotContains(t, err.Error(), "installed again")
	requireInstalled(t, u.Place, "x")

	// As after a kill right after the driver's removal.
	require.NoError(t, os.RemoveAll(u.Dir()))
	_, err = u.Uninstall(t.Context())
	require.ErrorIs(t, err, ErrMounted)
	require.ErrorContains(t, err, "installed again")
	requireInstalled(t, u.Place, "again")

	elsewhere := u
	elsewhere.Place, err = At(filepath.Join(t.TempDir(), "none"))
	require.NoError(t, err)
	_, err = elsewhere.Uninstall(t.Context())
	require.ErrorIs(t, err, ErrMounted)
	require.NoDirExists(t, elsewhere.PluginDir(), "kubelet has its driver elsewhere")

	require.NoError(t, os.Remove(filepath.Join(u.Proc, "self/ns/pid")))
	_, err = u.Uninstall(t.Context())
	require.ErrorContains(t, err, "--force")
	requireInstalled(t, u.Place, "again")
}

// The uninstallation waits for a mount that is running when the driver is removed, and installs the
// driver again if that leaves a mounted volume.
func TestUninstallDuringACall(t *testing.T) {
	for mounts, want := range map[string]error{"": nil, mountLine: ErrMounted} {
		u := unused(t)
		end := u.call(t)
		done := make(chan error)
		go func() {
			_, err := u.Uninstall(context.Background())
			done <- err
		}()
		require.Eventually(t, func() bool { _, err := os.Lstat(u.Dir()); return os.IsNotExist(err) }, time.Minute, time.Millisecond)
		select {
		case err := <-done:
			t.Fatalf("it did not wait for the call: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		u.mounts(t, mounts)
		end()
		if err := <-done; want == nil {
			require.NoError(t, err)
			require.NoDirExists(t, u.Dir())
		} else {
			require.ErrorIs(t, err, want)
			requireInstalled(t, u.Place, "again")
		}
	}
}

func TestUninstallDuringACallWithoutEnd(t *testing.T) {
	u := unused(t)
	u.call(t)
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := u.Uninstall(t.Context())
		require.ErrorContains(t, err, "process 4711 still runs the driver")
		require.Equal(t, callTimeout, time.Since(began))
	})
	requireInstalled(t, u.Place, "again")
}
