package nfsmark

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ReadFile returns the content of a file beside the marks. It opens only regular files of at most this
// many bytes: a client of the server that is root on it can create devices, pipes and endless files
// there. The error is a *ForeignError if it finds anything else.
func ReadFile(root *os.Root, name string, maxSize volume.Bytes) (content []byte, err error) {
	name = fileOf(name)
	at, err := root.OpenFile(name, unix.O_PATH|syscall.O_NOFOLLOW, 0) // O_PATH opens no device
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, at.Close()) }()
	info, err := at.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &ForeignError{name, fmt.Sprintf("is not a plain file (%s)", info.Mode())}
	}
	tooLarge := &ForeignError{name, fmt.Sprintf("is larger than %s, so it is not flexlvm's", maxSize)}
	if info.Size() > int64(maxSize) {
		return nil, tooLarge
	}
	f, err := os.Open(throughProc(at))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content, err = io.ReadAll(io.LimitReader(f, int64(maxSize)+1))
	if err == nil && len(content) > int(maxSize) { // the file has grown meanwhile
		err = tooLarge
	}
	return content, err
}

// throughProc returns a path that names the open file, even if its original name was replaced.
func throughProc(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// OpenDirectory opens a directory for reading, and fails on anything else: opening a pipe may block
// forever. Unlike os.OpenRoot and Root.Open, it opens no pipe or device that a client has put in the
// directory's place.
func OpenDirectory(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
}

// OpenRoot opens a directory of this machine as a root, and fails on anything else, as OpenDirectory.
func OpenRoot(dir string) (*os.Root, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return rootOf(f)
}

// Enter opens a directory below root as a root, and fails on anything else, as OpenDirectory.
func Enter(root *os.Root, name string) (*os.Root, error) {
	f, err := OpenDirectory(root, name)
	if err != nil {
		return nil, err
	}
	return rootOf(f)
}

func rootOf(f *os.File) (*os.Root, error) {
	root, err := os.OpenRoot(throughProc(f))
	return root, errors.Join(err, f.Close())
}

// WriteJSON atomically writes or replaces a file beside the marks. After an error, it leaves nothing
// that takes space: the file system may be full.
func WriteJSON(root *os.Root, name string, what any) error {
	content, err := json.Marshal(what)
	if err != nil {
		return fmt.Errorf("write %s: %w", fileOf(name), err)
	}
	// The name of the unfinished file may belong to a device, which must not be written to.
	unfinished := path.Join(Dir, "."+name)
	if err := root.Remove(unfinished); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(content, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = root.Rename(unfinished, fileOf(name))
	}
	if err != nil {
		return errors.Join(err, root.Remove(unfinished))
	}
	dir, err := OpenDirectory(root, Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Remove removes the mark of a volume, or another file beside the marks, if it exists.
func Remove(root *os.Root, name string) error {
	if err := root.Remove(fileOf(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
