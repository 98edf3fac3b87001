package quota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrOtherProject: a file belongs to a project that is not flexlvm's.
var ErrOtherProject = errors.New("belongs to a project of its own")

// CheckProjects reads the projects of everything below root, and changes nothing. The error wraps
// ErrOtherProject if AssignAll would have to take a file from another project.
func CheckProjects(ctx context.Context, root *os.File) error {
	return walk(ctx, root, "/", func(f *os.File, name string, _ bool) error {
		var a fsXAttr
		if err := ioctl(f, fsGetXAttr, unsafe.Pointer(&a)); err != nil {
			return fmt.Errorf("read project of %s: %w", name, err)
		}
		if a.project != 0 && a.project != project {
			return fmt.Errorf("%s %w, %d", name, ErrOtherProject, a.project)
		}
		return nil
	})
}

// AssignAll assigns the project to root, and to all directories and regular files below it. Files
// of other kinds keep project 0: the kernel has no call to change it, and they take no room but
// their inode. Killed in between, it is completed by another call.
func AssignAll(ctx context.Context, root *os.File) error {
	return walk(ctx, root, "/", func(f *os.File, name string, dir bool) error {
		if err := assign(f, project, dir); err != nil {
			return fmt.Errorf("set project of %s: %w", name, err)
		}
		return nil
	})
}

// walk visits root and the directories and regular files below it, none of which may change
// meanwhile. It follows no link, and does not enter other file systems mounted there.
func walk(ctx context.Context, root *os.File, name string, visit func(f *os.File, name string, dir bool) error) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	top, err := openAt(root, ".", unix.O_DIRECTORY) // with its own position in the listing
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	w := walker{ctx: ctx, device: st.Dev, visit: visit}
	return errors.Join(w.dir(top, name), top.Close())
}

type walker struct {
	ctx    context.Context
	device uint64
	visit  func(f *os.File, name string, dir bool) error
}

// names is how many names of a directory are read at a time.
const names = 1024

func (w walker) dir(d *os.File, name string) error {
	if err := w.visit(d, name, true); err != nil {
		return err
	}
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		list, err := d.Readdirnames(names)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", name, err)
		}
		for _, n := range list {
			if err := w.entry(d, n, path.Join(name, n)); err != nil {
				return err
			}
		}
	}
}

func (w walker) entry(d *os.File, base, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("check %s: %w", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if st.Dev != w.device || kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return nil
	}
	f, err := openAt(d, base, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	if kind == unix.S_IFDIR {
		err = w.dir(f, name)
	} else {
		err = w.visit(f, name, false)
	}
	return errors.Join(err, f.Close())
}

// openAt opens what was just seen to be a directory or a regular file: neither blocks.
func openAt(d *os.File, base string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), base, flags|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), base), nil
}
