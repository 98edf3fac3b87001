// Package freeze freezes several file systems at one instant, and thaws them whatever happens to
// its process: to the kernel, a frozen file system has no owner, and stays frozen.
//
// A process that writes to a frozen file system waits in the kernel; reading goes on. So a
// companion, a process of its own, holds the file systems open and thaws them once this process has
// ended, or after some seconds. Only if both are killed do they stay frozen, and then somebody who
// knows which they are has to call Thaw.
package freeze

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
)

// The kernel's requests (include/uapi/linux/fs.h), of which x/sys has no names.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// ErrThawed: a file system was no longer frozen.
var ErrThawed = errors.New("was thawed too early")

// A Hold keeps file systems frozen.
type Hold struct {
	roots     []*os.File
	frozen    []*os.File
	companion *command.Companion
}

// Prepare starts the companion, which thaws the file systems of these directories after maxHold at the
// latest. Nothing is frozen yet. Thaw must be called in any case. The program's main must call
// Serve.
func Prepare(run exec.Interface, roots []*os.File, maxHold time.Duration) (*Hold, error) {
	if len(roots) == 0 {
		return &Hold{}, nil
	}
	c, err := command.Accompany(run, ask(len(roots), maxHold), roots)
	if err != nil {
		return nil, fmt.Errorf("watch over frozen file systems: %w", err)
	}
	return &Hold{roots: roots, companion: c}, nil
}

// Freeze freezes the file systems one after the other, none after end; each is written back first.
// Once it has returned, none has changed since the last was frozen. The error is about the first
// that cannot be frozen, and Thaw thaws those before it.
func (h *Hold) Freeze(end time.Time) error {
	for _, root := range h.roots {
		if time.Now().After(end) {
			return fmt.Errorf("freeze %s: those before have been frozen for too long by now", root.Name())
		}
		err := unix.IoctlSetInt(int(root.Fd()), fiFreeze, 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("freeze %s: another program has frozen it; thaw it (`fsfreeze --unfreeze`) and try again", root.Name())
		}
		if err != nil {
			return fmt.Errorf("freeze %s: %w", root.Name(), err)
		}
		h.frozen = append(h.frozen, root)
	}
	return nil
}

// Thaw thaws what Freeze has frozen, and ends the companion. The error is ErrThawed if one of the
// file systems was thawed before, so that it may have changed meanwhile.
func (h *Hold) Thaw() error {
	var failures []error
	done := true
	for _, root := range h.frozen {
		thawed, err := Thaw(root)
		done = done && err == nil // otherwise the companion tries, too
		if err == nil && !thawed {
			err = fmt.Errorf("%s %w: it took too long, or another program has thawed it", root.Name(), ErrThawed)
		}
		failures = append(failures, err)
	}
	h.frozen = nil
	if h.companion != nil {
		if err := h.companion.End(done); err != nil {
			failures = append(failures, fmt.Errorf("watch over frozen file systems: %w", err))
		}
		h.companion = nil
	}
	return errors.Join(failures...)
}

// Thaw thaws the file system of a directory; false if it was not frozen.
func Thaw(root *os.File) (thawed bool, err error) {
	err = unix.IoctlSetInt(int(root.Fd()), fiThaw, 0)
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("thaw %s: %w; run `fsfreeze --unfreeze` on a directory of it", root.Name(), err)
	}
	return true, nil
}

// minKernel is the first kernel that is known to let device-mapper freeze a file system that is already
// frozen, as LVM does for a snapshot, and thaw it again. Before 6.8 that fails (EBUSY), and some
// kernels from 6.8 on count the device as frozen forever, so that it cannot be mounted again.
var minKernel = [2]int{7, 3}

// CheckSnapshots fails if this kernel cannot snapshot the logical volume of a frozen file system.
func CheckSnapshots() error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	return checkRelease(unix.ByteSliceToString(name.Release[:]))
}

func checkRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("read the kernel's release %q: %w", release, err)
	}
	if major < minKernel[0] || major == minKernel[0] && minor < minKernel[1] {
		return fmt.Errorf("the kernel is %s, and before Linux %d.%d no snapshot is taken of a file system that is frozen: snapshot the volumes one by one, or use a later kernel", release, minKernel[0], minKernel[1])
	}
	return nil
}
