// Package loop creates sparse files and attaches them as loop devices. A file begins with a flexlvm
// header, which the device does not show. The header distinguishes flexlvm's files from those that
// a person has created.
package loop

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Header is the size of what precedes the device's content in a file.
const Header = volume.MiB

// magic is the first line of a file, with the version of its header.
const magic = "flexlvm loop device 1\n"

// ErrForeign: the file does not begin with a flexlvm header.
var ErrForeign = errors.New("flexlvm has not created it")

// A File is the backing file of a loop device.
type File struct {
	Path string `json:"file"`
	ID   string `json:"id"` // identifies it among all others
	// Size is the size of the device; the file is longer by Header.
	Size volume.Bytes `json:"size"`
	// Block is the device's sector size: the smallest with which the file system that holds the
	// file supports direct I/O. It never changes, because file systems rely on it.
	Block int `json:"block"`
}

// Create creates a sparse file for a device of that size, a multiple of 4 KiB. Killed at any
// instant, it leaves nothing or the complete file. An existing file is an error (os.ErrExist),
// whatever it holds.
func Create(path string, size volume.Bytes) (File, error) {
	f, err := create(path, size)
	if err != nil {
		return File{}, fmt.Errorf("make file %s: %w", path, err)
	}
	return f, nil
}

func create(path string, size volume.Bytes) (File, error) {
	dir := filepath.Dir(path)
	if err := hasRoom(dir, Header+size); err != nil {
		return File{}, err
	}
	// The file has no name until it is complete.
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return File{}, fmt.Errorf("the file system of %s cannot make files without a name (%w); choose a directory on ext4 or XFS", dir, err)
	}
	if err != nil {
		return File{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	w := os.NewFile(uintptr(fd), path)
	defer func() { _ = w.Close() }()
	var id [8]byte
	// Requests of up to 256 bytes are never cut short (man 2 getrandom).
	if _, err := unix.Getrandom(id[:], 0); err != nil {
		return File{}, fmt.Errorf("choose an ID: %w", err)
	}
	f := File{Path: path, ID: "loop-" + hex.EncodeToString(id[:]), Size: size, Block: sectorOf(fd)}
	text, err := json.Marshal(f)
	if err != nil {
		return File{}, err
	}
	if _, err := w.WriteString(magic + string(text) + "\n"); err != nil {
		return File{}, err
	}
	if err := w.Truncate(int64(Header + size)); err != nil {
		return File{}, err
	}
	if err := w.Sync(); err != nil {
		return File{}, err
	}
	// Linkat fails if the name is taken.
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil {
		return File{}, &os.PathError{Op: "link", Path: path, Err: err}
	}
	return f, durable.Sync(dir)
}

// hasRoom fails if the whole device does not fit: a device that runs out of room below its file
// systems loses what they have written.
func hasRoom(dir string, need volume.Bytes) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if free := volume.Bytes(fs.Bavail) * volume.Bytes(fs.Bsize); free < need {
		return fmt.Errorf("%s has %s free, and the file may grow to %s; choose a smaller size or another directory", dir, free, need)
	}
	return nil
}

// sectorOf returns the smallest sector size with which a file supports direct I/O; 512 if the
// kernel does not report it.
func sectorOf(fd int) int {
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st) == nil && st.Dio_offset_align == 4096 {
		return 4096
	}
	return 512
}

// Read returns the header of a file, with the file's present path. The error is ErrForeign if
// flexlvm has not created the file.
func Read(path string) (File, error) {
	r, f, err := open(path)
	if err != nil {
		return File{}, err
	}
	return f, r.Close()
}

// open opens a file that flexlvm has created.
func open(path string) (*os.File, File, error) {
	r, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		return nil, File{}, fmt.Errorf("file %s: it is no regular file: %w", path, ErrForeign)
	}
	if err != nil {
		return nil, File{}, fmt.Errorf("file of a loop device: %w", err)
	}
	f, err := read(r, path)
	if err != nil {
		_ = r.Close()
		return nil, File{}, fmt.Errorf("file %s: %w", path, err)
	}
	return r, f, nil
}

func read(r *os.File, path string) (f File, err error) {
	st, err := r.Stat()
	if err != nil {
		return f, err
	}
	if !st.Mode().IsRegular() {
		return f, fmt.Errorf("it is no regular file: %w", ErrForeign)
	}
	buf := make([]byte, volume.Block)
	n, err := r.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return f, err
	}
	text, is := strings.CutPrefix(string(buf[:n]), magic)
	line, _, whole := strings.Cut(text, "\n")
	if !is || !whole {
		return f, fmt.Errorf("it does not begin as a file of a loop device: %w", ErrForeign)
	}
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		return f, fmt.Errorf("its header: %w", err)
	}
	if f.ID == "" || f.Size <= 0 || f.Block != 512 && f.Block != 4096 {
		return f, fmt.Errorf("its header makes no sense: %s", line)
	}
	if length := volume.Bytes(st.Size()); length != Header+f.Size {
		return f, fmt.Errorf("it has %d bytes, and was made with %d; it is not attached", length, Header+f.Size)
	}
	f.Path = path
	return f, nil
}
