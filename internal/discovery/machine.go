package discovery

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// A Machine is the host with its disks.
type Machine struct {
	run          exec.Interface
	finder       Finder
	bytes, files *Pace
	// users fails if a process or a loop device has a device open.
	users func(device string) error
}

// NewMachine returns this machine. It erases so many bytes, and deletes so many files, in a
// second; 0: no bound. users fails if a process or a loop device has a device open.
func NewMachine(run exec.Interface, bytes, files int64, users func(device string) error) *Machine {
	return &Machine{run: run, finder: Finder{Host: OnHost(run)}, bytes: NewPace(bytes), files: NewPace(files), users: users}
}

// Find returns what lies in the directories of the classes.
func (m *Machine) Find(ctx context.Context, classes []Class) ([]Found, error) {
	return m.finder.Find(ctx, classes)
}

// Offerable fails if something belongs to somebody.
func (m *Machine) Offerable(ctx context.Context, f Found) error {
	if err := m.unused(f); err != nil {
		return err
	}
	return Offerable(ctx, m.run, f)
}

// Empty fails unless nothing is left in it.
func (m *Machine) Empty(f Found) error { return Empty(f) }

// Owner tells whose its topmost directory is; nil of a device.
func (m *Machine) Owner(f Found) (*Owner, error) {
	if f.Kind == Device {
		return nil, nil
	}
	return OwnerOf(f)
}

// Clean cleans as the class says, from a byte on, and tells progress. It may be killed, and
// be called again. It fails, and goes no further, once somebody uses what it cleans.
func (m *Machine) Clean(ctx context.Context, f Found, how Class, e Entry, progress func(int64) error) error {
	if f.Kind != Device {
		return DeleteFiles(ctx, f, e.Owner, m.files, func() error { return m.unused(f) })
	}
	if err := m.unused(f); err != nil {
		return fmt.Errorf("erase %s: %w", f.Path, err)
	}
	if err := m.users(f.Path); err != nil {
		return fmt.Errorf("erase %s: %w", f.Path, err)
	}
	if err := NotTaken(ctx, m.run, f.Path); err != nil {
		return fmt.Errorf("erase %s: %w", f.Path, err)
	}
	return Erase(ctx, f, how.Device, e.Offset, m.bytes, func() error { return m.unused(f) }, progress)
}

func (m *Machine) unused(f Found) error {
	mounts, err := m.finder.Host.Mounts()
	if err != nil {
		return fmt.Errorf("read the mounts: %w", err)
	}
	return Unused(f, mounts)
}
