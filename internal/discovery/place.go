package discovery

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// A Place is where the path of another program's volume leads on this machine.
type Place struct {
	Path string
	Err  error // why it is not known where it leads
	// Resolved is the path without links. What does not exist of it is as in Path. It is empty if the path leads to a file
	// server, whose data is on no disk of this machine.
	Resolved string
	Number   uint64       // of the device that is there, or of the file system's device
	Root     string       // its path in the file system; empty for a device
	Device   diskid.Names // of the device; empty for a file or directory
}

// Resolve returns where the paths lead. It waits for disks that hang no longer than disk.ReadTime in all.
func (m *Machine) Resolve(ctx context.Context, paths []string) (out []Place) {
	if len(paths) == 0 {
		return nil
	}
	m.resolving.Lock() // Reads would take the disk of a path that another call resolves for one that hangs
	defer m.resolving.Unlock()
	ctx, cancel := context.WithTimeout(ctx, disk.ReadTime)
	defer cancel()
	mounts, err := m.finder.Host.Mounts()
	for _, at := range paths {
		one := Place{Path: at, Err: err}
		if err == nil {
			one = m.resolveInTime(ctx, mounts, at)
		}
		out = append(out, one)
	}
	return out
}

// resolveInTime is finder.place, but does not wait long for a disk that hangs.
func (m *Machine) resolveInTime(ctx context.Context, mounts []*mountinfo.Info, at string) Place {
	var found Place
	err := m.reads.Check(ctx, "at "+at, func(context.Context) (err error) {
		found, err = m.finder.place(mounts, at)
		return err
	})
	if err != nil {
		return Place{Path: at, Err: err} // found may be written later
	}
	found.Path = at
	return found
}

// place returns where a path leads, without Path.
func (f *finder) place(mounts []*mountinfo.Info, at string) (Place, error) {
	resolved, err := resolveExisting(mounts, path.Join("/", at))
	if far := (remoteError{}); errors.As(err, &far) {
		return Place{}, nil
	}
	if err != nil {
		return Place{}, err
	}
	out := Place{Resolved: resolved}
	info, err := os.Lstat(resolved)
	if err != nil && !isAbsent(err) {
		return out, err
	}
	if err == nil && info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0 {
		out.Number, out.Device, err = f.deviceAt(resolved)
		return out, err
	}
	on := mountOf(mounts, resolved)
	if on == nil {
		return out, errors.New("the mount that it is on cannot be found")
	}
	out.Number = unix.Mkdev(uint32(on.Major), uint32(on.Minor))
	out.Root = path.Join(on.Root, strings.TrimPrefix(resolved, on.Mountpoint))
	return out, nil
}

// deviceAt returns the number and the names of the device at a path.
func (f *finder) deviceAt(at string) (uint64, diskid.Names, error) {
	number, err := f.Host.Number(at)
	if err != nil {
		return 0, diskid.Names{}, err
	}
	d, err := f.Host.Device(number)
	return number, diskid.Names{ID: d.ID, Aliases: aliasesOf(d.Under)}, err
}

// resolveExisting is resolve, but appends what does not exist of the path to the rest.
func resolveExisting(mounts []*mountinfo.Info, at string) (string, error) {
	resolved, err := resolve(mounts, at)
	if !isAbsent(err) || at == "/" {
		return resolved, err
	}
	parent, err := resolveExisting(mounts, path.Dir(at))
	return path.Join(parent, path.Base(at)), err
}

// isAbsent reports whether an error means that there is nothing at a path.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// IsAt reports whether the place has the data of f, a part of it, or what it is a part of.
func (f *Found) IsAt(p *Place) (bool, error) {
	switch {
	case overlapping(path.Clean(p.Path), f.Path):
		return true, nil
	case p.Err != nil:
		return false, p.Err
	case p.Resolved == "":
		return false, nil
	}
	same := p.Number != 0 && p.Number == f.Number && (f.Kind == Device || p.Root == "" || overlapping(p.Root, f.Root))
	return same || overlapping(p.Resolved, f.Path) || p.Device.Overlap(f.Names()), nil
}

// overlapping reports whether two paths are the same, or one is below the other.
func overlapping(a, b string) bool { return diskid.Within(a, b) || diskid.Within(b, a) }
