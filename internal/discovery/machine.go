package discovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
)

// A Machine is the host with its disks.
type Machine struct {
	run                     exec.Interface
	finder                  finder
	eraseLimit, deleteLimit *rateLimiter
	// checkNoUsers fails if a process or a loop device has a device open.
	checkNoUsers func(device string) error
	reads        *disk.Reads
	resolving    sync.Mutex
}

// NewMachine returns this machine. It erases at most that many bytes, and deletes at most that many
// files, per second; 0: no limit. checkNoUsers fails if a process or a loop device has a device open.
func NewMachine(run exec.Interface, bytesPerSecond, filesPerSecond int64, checkNoUsers func(device string) error) *Machine {
	return &Machine{run: run, finder: finder{Host: newHost(run)}, eraseLimit: newRateLimiter(bytesPerSecond), deleteLimit: newRateLimiter(filesPerSecond), checkNoUsers: checkNoUsers, reads: disk.NewReads(disk.ReadTime)}
}

// Find returns what is in the directories of the classes, as finder.Find does.
func (m *Machine) Find(ctx context.Context, classes []Class) ([]Found, map[string]error, error) {
	return m.finder.Find(ctx, classes)
}

// CheckOfferable fails if what was found is in use, or holds data that the kubelet would format as a
// volume of the class. It returns what the file system on a device is called where it is mounted; empty if there is
// none.
func (m *Machine) CheckOfferable(ctx context.Context, f Found, c Class, e Entry) (filesystem string, err error) {
	if err := m.checkUnmounted(f); err != nil {
		return "", err
	}
	return checkOfferable(ctx, m.run, f, c, e)
}

// CheckEmpty fails unless f is empty, and files created in it inherit the attributes of owner, if those
// are recorded.
func (m *Machine) CheckEmpty(f Found, owner *Owner) error { return checkEmpty(f, owner) }

// Owner returns the owner, the mode and the attributes of f's topmost directory; nil for a device.
func (m *Machine) Owner(f Found) (*Owner, error) {
	if f.Kind == Device {
		return nil, nil
	}
	return ownerOf(f)
}

// Clean cleans as the class specifies, from byte e.Offset on, and reports progress. It may be
// killed, and be called again. It stops with an error once somebody uses what it cleans.
func (m *Machine) Clean(ctx context.Context, f Found, how Class, e Entry, progress func(int64) error) error {
	if err := checkNotFlexlvm(ctx, m.run, f.Number); err != nil {
		return fmt.Errorf("clean %s: %w", f.Path, err)
	}
	if f.Kind != Device {
		if err := m.cleanDirectory(ctx, f, e); err != nil {
			return fmt.Errorf("delete the files in %s: %w", f.Path, err)
		}
		return nil
	}
	if err := m.cleanDevice(ctx, f, how, e, progress); err != nil {
		return fmt.Errorf("erase %s: %w", f.Path, err)
	}
	return nil
}

func (m *Machine) cleanDirectory(ctx context.Context, f Found, e Entry) error {
	top, err := m.openSame(ctx, f)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	return deleteFiles(ctx, f, e.Owner, m.deleteLimit, func() error { return m.checkUnmounted(f) })
}

func (m *Machine) cleanDevice(ctx context.Context, f Found, how Class, e Entry, progress func(int64) error) error {
	if err := m.checkUnmounted(f); err != nil {
		return err
	}
	if err := m.checkNoUsers(f.Path); err != nil {
		return err
	}
	if err := checkSignatures(ctx, m.run, f.Path, isMember); err != nil {
		return err
	}
	return eraseDevice(ctx, f, how.Device, e.Offset, m.eraseLimit, func() error { return m.checkUnmounted(f) }, progress)
}

// openSame opens the topmost directory of what was found, so that it is not unmounted meanwhile,
// and checks again with its device that the file system is the same.
func (m *Machine) openSame(ctx context.Context, f Found) (*os.File, error) {
	top, err := openTop(f)
	if err != nil {
		return nil, err
	}
	if err := m.finder.checkSameFilesystem(ctx, f); err != nil {
		return nil, errors.Join(err, top.Close())
	}
	return top, nil
}

func (f *finder) checkSameFilesystem(ctx context.Context, found Found) error {
	d, err := f.Host.Device(found.Number)
	if err != nil {
		return err
	}
	uuid, err := f.Host.UUID(ctx, d.Path)
	if err != nil {
		return err
	}
	if now := diskid.OfFilesystem(uuid, found.Root); now != found.Disk {
		return fmt.Errorf("file system %s is now in the place of %s, which was found here; nothing is deleted", now, found.Disk)
	}
	return nil
}

func (m *Machine) checkUnmounted(f Found) error {
	mounts, err := m.finder.Host.Mounts()
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	return checkUnmounted(f, mounts)
}
