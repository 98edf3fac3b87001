package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/mountinfo"
)

// A Target is a directory, or a file, to mount on. It is held open, so that the mount goes onto the
// very directory that was checked.
type Target struct {
	Path string
	dir  *os.File
	file bool
}

// A TargetError reports what is wrong with a target.
type TargetError struct {
	Path   string
	Reason string
}

func (e *TargetError) Error() string { return fmt.Sprintf("mount directory %q: %s", e.Path, e.Reason) }

// OpenTarget opens the directory at path, which must be absolute and must be a
// directory itself, not a link to one. The caller closes it.
func OpenTarget(path string) (*Target, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, &TargetError{path, "does not exist; kubelet makes it before it calls"}
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP):
		return nil, &TargetError{path, "is not a directory (a file, or a symbolic link)"}
	case err != nil:
		return nil, fmt.Errorf("open mount directory %s: %w", path, err)
	}
	return &Target{Path: path, dir: os.NewFile(uintptr(fd), path)}, nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return &TargetError{path, "is empty; give an absolute path"}
	case strings.ContainsRune(path, 0):
		return &TargetError{path, "holds a NUL byte"}
	case !filepath.IsAbs(path):
		return &TargetError{path, "is not absolute"}
	case path == "/" || filepath.Clean(path) != path:
		return &TargetError{path, "is not in its plain form, or is the root directory"}
	}
	return nil
}

// OpenFileTarget is OpenTarget for a file, on which a device node is to be mounted.
func OpenFileTarget(path string) (*Target, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, &TargetError{path, "does not exist"}
	}
	if err != nil {
		return nil, fmt.Errorf("open mount target %s: %w", path, err)
	}
	return &Target{Path: path, dir: os.NewFile(uintptr(fd), path), file: true}, nil
}

// Close releases the target.
func (t *Target) Close() error { return t.dir.Close() }

// Empty fails unless the directory is empty, or the file is a regular and empty one.
func (t *Target) Empty() error {
	if t.file {
		return t.emptyFile()
	}
	names, err := t.dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("read mount directory %s: %w", t.Path, err)
	}
	return &TargetError{t.Path, fmt.Sprintf("is not empty: it holds %q, which a mount would hide; move it away", names[0])}
}

func (t *Target) emptyFile() error {
	info, err := t.dir.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("check mount target %s: %w", t.Path, err)
	case !info.Mode().IsRegular():
		return &TargetError{t.Path, "is no plain file, which the node of a device could be mounted on"}
	case info.Size() > 0:
		return &TargetError{t.Path, "is a file that is not empty, which a mount would hide; move it away"}
	}
	return nil
}

// A Point is a mount of a file system or of a device node.
type Point struct {
	Path   string
	Type   string // of the file system
	Source string
	// Number is the number of the file system's device, as in stat's st_rdev; if the node of a
	// block device in /dev is mounted alone, the number of that device.
	Number uint64
	// Root is the directory of the file system that is mounted. Of a very long path, At, All and ByDevice
	// return only the beginning.
	Root string
	// ReadOnly: this mount is read-only, whatever the file system is.
	ReadOnly bool
}

// At returns the mounts at path, the topmost last; none if nothing is mounted or path does not
// exist.
func At(path string) ([]Point, error) {
	path = filepath.Clean(path)
	// The kernel's paths contain no links.
	if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(parent, filepath.Base(path))
	}
	return points(func(i *mountinfo.Info) bool { return i.Mountpoint == path })
}

// All returns every mount of this mount namespace. It accesses no other machine's file system.
func All() ([]Point, error) { return points(func(*mountinfo.Info) bool { return true }) }

// ByDevice returns every mount of this mount namespace, by device number.
func ByDevice() (map[uint64][]Point, error) {
	all, err := All()
	if err != nil {
		return nil, err
	}
	table := map[uint64][]Point{}
	for _, p := range all {
		table[p.Number] = append(table[p.Number], p)
	}
	return table, nil
}

func points(match func(*mountinfo.Info) bool) ([]Point, error) {
	infos, err := mountinfo.Own(match)
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	var dev unix.Stat_t
	if err := unix.Stat("/dev", &dev); err != nil {
		return nil, fmt.Errorf("read the file system of /dev: %w", err)
	}
	found := make([]Point, 0, len(infos))
	for _, i := range infos {
		found = append(found, Point{Path: i.Mountpoint, Type: i.FSType, Source: i.Source, Number: numberOf(i, dev.Dev), Root: i.Root, ReadOnly: isReadOnly(i)})
	}
	return found, nil
}

// numberOf accesses the mount only if that is part of /dev, whose file system has the number dev:
// access to another file system may hang.
func numberOf(i *mountinfo.Info, dev uint64) uint64 {
	var st unix.Stat_t
	if isPartOfDev(i, dev) && unix.Lstat(i.Mountpoint, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return st.Rdev
	}
	return deviceOf(i)
}

// isPartOfDev reports whether a mount shows a file or directory of the host's /dev. The kernel has only one
// devtmpfs, also where another file system is at /dev. Any other tmpfs may belong to a tenant, who can create
// nodes in it for devices of others and have kubelet mount them (subPath).
func isPartOfDev(i *mountinfo.Info, dev uint64) bool {
	return i.Root != "/" && (i.FSType == "devtmpfs" || i.FSType == "tmpfs" && deviceOf(i) == dev)
}

func isReadOnly(i *mountinfo.Info) bool {
	return slices.Contains(strings.Split(i.Options, ","), "ro")
}

func deviceOf(i *mountinfo.Info) uint64 { return unix.Mkdev(uint32(i.Major), uint32(i.Minor)) }

// Unmount unmounts the topmost mount at path, which is a path as At returns it. It is never forced
// or lazy: ErrBusy means that the mount is still in use.
func Unmount(path string) error {
	err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: %w by a process; it is retried", path, ErrBusy)
	case err != nil:
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
