package mount

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
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
