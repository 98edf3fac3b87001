// Package destination is the directory that is filled. It touches nothing outside the directory,
// whatever the names of the files.
package destination

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Files in the control directory.
const (
	TmpDir       = store.ControlDir + "/tmp"
	ManifestFile = store.ControlDir + "/manifest.jsonl"
	JournalFile  = store.ControlDir + "/journal.jsonl"
	CompleteFile = store.ControlDir + "/complete"
	lockFile     = store.ControlDir + "/lock"
)

// ErrBusy: another fetch holds the destination.
var ErrBusy = errors.New("another fetch is using this directory")

// Dir is the destination. It touches nothing outside the directory, and follows no
// symbolic link in it.
type Dir struct {
	Root *os.Root
	Tmp  *os.Root
	// Dir stays open so that syncfs reports every failed write since the start.
	Dir  *os.File
	lock *os.File

	mu sync.Mutex
	// realDirs are the paths that were found to be real directories.
	realDirs map[string]bool
	// subdirs are the open directories of temporary files, by name below tmp.
	subdirs map[string]*os.File
}

// Open creates the directory if it is missing, and locks it for this process.
func Open(name string) (*Dir, error) {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return nil, fmt.Errorf("create destination: %w", err)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open destination: %w", err)
	}
	d := &Dir{Root: root, realDirs: map[string]bool{"": true}, subdirs: map[string]*os.File{}}
	if err := d.open(); err != nil {
		d.Close()
		return nil, fmt.Errorf("open destination %s: %w", name, err)
	}
	return d, nil
}

func (d *Dir) open() error {
	var err error
	if d.Dir, err = d.Root.Open("."); err != nil {
		return err
	}
	if err := d.Mkdir(TmpDir); err != nil {
		return err
	}
	if d.Tmp, err = d.Root.OpenRoot(TmpDir); err != nil {
		return err
	}
	for _, name := range []string{ManifestFile, JournalFile, CompleteFile, lockFile} {
		if info, err := d.Root.Lstat(name); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s %w: it is not a regular file; remove it", name, store.ErrInTheWay)
		}
	}
	if d.lock, err = d.Root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	return err
}

// Close releases the directory.
func (d *Dir) Close() {
	for _, f := range []*os.File{d.lock, d.Dir} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, dir := range d.subdirs {
		_ = dir.Close()
	}
	if d.Tmp != nil {
		_ = d.Tmp.Close()
	}
	_ = d.Root.Close()
}

// Mkdir creates a directory and its parents. An existing one must be a directory itself, not a link to
// one.
func (d *Dir) Mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mkdirLocked(name)
}

func (d *Dir) mkdirLocked(name string) error {
	if d.realDirs[name] {
		return nil
	}
	if err := d.mkdirLocked(Parent(name)); err != nil {
		return err
	}
	if err := d.Root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := d.Root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s %w: a directory must go there", name, store.ErrInTheWay)
	}
	d.realDirs[name] = true
	return nil
}

// Lstat describes what is at name. The error is fs.ErrNotExist if a directory above it is
// really a link or a file.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range name {
		if c != '/' || d.realDirs[name[:i]] {
			continue
		}
		info, err := d.Root.Lstat(name[:i])
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, fs.ErrNotExist
		}
		d.realDirs[name[:i]] = true
	}
	return d.Root.Lstat(name)
}

// Create creates a temporary file. It allocates size bytes immediately, so that a full disk is noticed
// before anything is fetched; 0 allocates none.
func (d *Dir) Create(temp string, size int64) (*os.File, error) {
	file, err := d.createEmpty(temp)
	if err != nil || size == 0 {
		return file, err
	}
	err = unix.Fallocate(int(file.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = file.Truncate(size)
	}
	if err != nil {
		_ = file.Close()
		_ = d.Tmp.Remove(temp)
		return nil, fmt.Errorf("allocate %d bytes for %s: %w", size, temp, err)
	}
	return file, nil
}

// createEmpty creates a temporary file in its subdirectory, which is already open. os.Root would resolve the
// path and check whether the file can be polled, with six more system calls, which matters for small
// files. O_EXCL follows no link.
func (d *Dir) createEmpty(temp string) (*os.File, error) {
	dir, file, err := d.inSubdir(temp)
	if err != nil {
		return nil, err
	}
	for {
		fd, err := unix.Openat(int(dir.Fd()), file, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
		if errors.Is(err, unix.EINTR) { // network file systems return it
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("create temporary file %s: %w", temp, err)
		}
		return os.NewFile(uintptr(fd), temp), nil
	}
}

// Reopen opens a temporary file that an earlier run has left.
func (d *Dir) Reopen(temp string) (*os.File, error) {
	info, err := d.Tmp.Lstat(temp)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w: it is not a regular file", temp, store.ErrInTheWay)
	}
	return d.Tmp.OpenFile(temp, os.O_RDWR, 0)
}

// AllocatedBytes returns how many bytes of disk a temporary file occupies; 0 if there is none.
func (d *Dir) AllocatedBytes(temp string) int64 {
	info, err := d.Tmp.Lstat(temp)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// OpenDir opens a directory to publish files in, and creates it if it is missing. It is a real
// directory of the destination, not a link.
func (d *Dir) OpenDir(name string) (*os.File, error) {
	if err := d.Mkdir(name); err != nil {
		return nil, err
	}
	if name == "" {
		name = "."
	}
	return d.Root.Open(name)
}

// Publish renames a temporary file to its name in a directory that OpenDir opened.
func (d *Dir) Publish(temp string, dir *os.File, name string) error {
	from, file, err := d.inSubdir(temp)
	if err != nil {
		return err
	}
	err = unix.Renameat(int(from.Fd()), file, int(dir.Fd()), name)
	if errors.Is(err, unix.EISDIR) {
		return fmt.Errorf("%s %w: there is a directory in place of the file", name, store.ErrInTheWay)
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", temp, name, err)
	}
	return nil
}

// inSubdir returns the open directory of a temporary file, and the file's name in it.
func (d *Dir) inSubdir(temp string) (*os.File, string, error) {
	subdir, file := path.Split(temp)
	dir, err := d.TempSubdir(strings.TrimSuffix(subdir, "/"))
	return dir, file, err
}

// TempSubdir opens a directory of temporary files, once. Each worker has its own: workers that
// create files in one directory wait for each other.
func (d *Dir) TempSubdir(name string) (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir := d.subdirs[name]; dir != nil {
		return dir, nil
	}
	if name != "" {
		if err := d.Tmp.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	dir, err := d.Tmp.Open(path.Join(".", name))
	if err == nil {
		d.subdirs[name] = dir
	}
	return dir, err
}

// OpenFile opens the regular file of this name for reading.
func (d *Dir) OpenFile(name string) (*os.File, error) {
	info, err := d.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w: it is not a regular file", name, store.ErrInTheWay)
	}
	return d.Root.Open(name)
}

// Sync makes everything that was written and renamed so far durable: one call for any number of files.
func (d *Dir) Sync() error {
	if err := unix.Syncfs(int(d.Dir.Fd())); err != nil {
		return fmt.Errorf("sync destination: %w", err)
	}
	return nil
}

// Sweep removes temporary files that are not in keep, and returns how many it removed.
func (d *Dir) Sweep(keep map[string]bool) (removed int, err error) {
	err = fs.WalkDir(d.Tmp.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || keep[name] {
			return err
		}
		if err := d.Tmp.Remove(name); err != nil {
			return fmt.Errorf("remove %s/%s: %w", TmpDir, name, err)
		}
		removed++
		return nil
	})
	return removed, err
}

// Clear removes all temporary files and subdirectories.
func (d *Dir) Clear() error {
	if _, err := d.Sweep(nil); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, dir := range d.subdirs {
		_ = dir.Close()
		delete(d.subdirs, name)
	}
	names, err := fs.ReadDir(d.Tmp.FS(), ".")
	for _, subdir := range names {
		err = errors.Join(err, d.Tmp.Remove(subdir.Name()))
	}
	return err
}

// Remove removes a file, and the directories above it that become empty.
func (d *Dir) Remove(name string) error {
	info, err := d.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s %w: it is not the regular file that was fetched", name, store.ErrInTheWay)
	}
	if err := d.Root.Remove(name); err != nil {
		return err
	}
	for dir := Parent(name); dir != ""; dir = Parent(dir) {
		if d.Root.Remove(dir) != nil { // not empty
			break
		}
		d.mu.Lock()
		delete(d.realDirs, dir)
		d.mu.Unlock()
	}
	return nil
}

// ReplaceFile atomically writes a small file of the control directory: temporary file, sync, rename,
// sync. Everything written before is durable before the file has its name.
func (d *Dir) ReplaceFile(name string, data []byte) error {
	temp := strings.ReplaceAll(path.Base(name), ".", "-") + ".new"
	_ = d.Tmp.Remove(temp)
	file, err := d.Create(temp, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := d.Sync(); err != nil {
		return err
	}
	if err := d.Root.Rename(path.Join(TmpDir, temp), name); err != nil {
		return err
	}
	return d.Sync()
}

// IsCaseInsensitive reports whether the file system treats names that differ only by case as equal.
func (d *Dir) IsCaseInsensitive() (bool, error) {
	const upper, lower = "CASE", "case"
	_ = d.Tmp.Remove(upper)
	file, err := d.Create(upper, 0)
	if err != nil {
		return false, err
	}
	_ = file.Close()
	_, err = d.Tmp.Lstat(lower)
	if removeErr := d.Tmp.Remove(upper); removeErr != nil {
		return false, removeErr
	}
	return err == nil, nil
}
