package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/pause"
)

// callTimeout bounds how long Uninstall waits for running calls of the driver.
const callTimeout = time.Minute

// Unused uninstalls a driver if nothing needs it.
type Unused struct {
	Place
	Proc   string // the host's proc, in which its mounts and processes are visible
	Binary string // the binary to install if the driver turns out to be needed
}

// Uninstall removes the driver, or returns an error if volumes are mounted. changed is false if there was no
// driver.
//
// A call that kubelet started earlier may mount a volume after the driver is removed. So Uninstall then waits
// for running calls, checks again, and reinstalls the driver if it is needed.
func (u Unused) Uninstall(ctx context.Context) (changed bool, err error) {
	if err := u.Check(ctx); err != nil {
		return false, err
	}
	var driver unix.Stat_t
	if err := unix.Lstat(u.Driver(), &driver); err != nil && !gone(err) {
		return false, fmt.Errorf("check the driver: %w", err)
	}
	changed, err = u.Place.Uninstall(ctx)
	if !changed {
		return false, err
	}
	if err := u.awaitCalls(ctx, driver); err != nil {
		return true, u.putBack(ctx, err)
	}
	return true, errors.Join(u.Check(ctx), err)
}

// Check returns an error if volumes are mounted. It then also reinstalls a missing driver, because kubelet
// could not unmount the volumes without it.
func (u Unused) Check(ctx context.Context) error {
	mounts, err := HostMounts(u.Proc)
	if err != nil {
		return fmt.Errorf("%w, or with --force", err)
	}
	mounted, err := Mounted(mounts)
	if err != nil || len(mounted) == 0 {
		return err
	}
	if exists(u.Driver()) || !exists(u.PluginDir()) { // without a plugin directory here, kubelet uses another one
		return Refusal(mounted)
	}
	return u.putBack(ctx, Refusal(mounted))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func (u Unused) putBack(ctx context.Context, because error) error {
	if _, err := u.Install(ctx, u.Binary); err != nil {
		return errors.Join(because, err)
	}
	return fmt.Errorf("the driver had gone and is installed again: %w", because)
}

// awaitCalls waits until no process runs the file that was the driver. It ignores processes that it cannot
// stat: the next Check finds what they mount.
func (u Unused) awaitCalls(ctx context.Context, driver unix.Stat_t) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for {
		running, err := u.running(driver)
		if err != nil || running == 0 {
			return err
		}
		if err := pause.For(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("process %d still runs the driver, and may mount a volume; try again: %w", running, err)
		}
	}
}

// running returns the PID of another process that runs the file, or 0.
func (u Unused) running(file unix.Stat_t) (pid int, err error) {
	entries, err := os.ReadDir(u.Proc)
	if err != nil {
		return 0, fmt.Errorf("look for calls of the driver: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// For a program on NFS whose server is unreachable, stat would wait for the server.
		var exe unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, filepath.Join(u.Proc, e.Name(), "exe"), unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &exe) == nil &&
			exe.Ino == file.Ino && unix.Mkdev(exe.Dev_major, exe.Dev_minor) == file.Dev {
			return pid, nil
		}
	}
	return 0, nil
}
