package fetch

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

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
)

// What lies in the control directory.
const (
	tmpDir       = controlDir + "/tmp"
	manifestFile = controlDir + "/manifest.jsonl"
	journalFile  = controlDir + "/journal.jsonl"
	completeFile = controlDir + "/complete"
	lockFile     = controlDir + "/lock"
)

// errBusy: another fetch holds the destination.
var errBusy = errors.New("another fetch is at work in this directory")

// errInTheWay: something that is not fetch's stands where a file or a directory
// must go.
var errInTheWay = errors.New("is in the way")

// dest is the destination. Nothing that it does leaves the directory, and it
// walks through no symbolic link in it.
type dest struct {
	root *os.Root
	tmp  *os.Root
	// dir stays open so that syncfs reports every failed write since the start.
	dir  *os.File
	lock *os.File

	mu sync.Mutex
	// known are the directories that were seen to be real ones.
	known map[string]bool
	// shelves are the open directories of temporary files, by name below tmp.
	shelves map[string]*os.File
}

// openDest makes the directory where it is missing, and takes it for this
// process alone.
func openDest(name string) (*dest, error) {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return nil, fmt.Errorf("make destination: %w", err)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open destination: %w", err)
	}
	d := &dest{root: root, known: map[string]bool{"": true}, shelves: map[string]*os.File{}}
	if err := d.open(); err != nil {
		d.close()
		return nil, fmt.Errorf("open destination %s: %w", name, err)
	}
	return d, nil
}

func (d *dest) open() error {
	var err error
	if d.dir, err = d.root.Open("."); err != nil {
		return err
	}
	if err := d.mkdir(tmpDir); err != nil {
		return err
	}
	if d.tmp, err = d.root.OpenRoot(tmpDir); err != nil {
		return err
	}
	for _, name := range []string{manifestFile, journalFile, completeFile, lockFile} {
		if info, err := d.root.Lstat(name); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s %w: it is not a regular file; remove it", name, errInTheWay)
		}
	}
	if d.lock, err = d.root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return err
	}
	err = unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errBusy
	}
	return err
}

// close lets go of the directory.
func (d *dest) close() {
	for _, f := range []*os.File{d.lock, d.dir} {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, dir := range d.shelves {
		_ = dir.Close()
	}
	if d.tmp != nil {
		_ = d.tmp.Close()
	}
	_ = d.root.Close()
}

// mkdir makes a directory and those above it. What is there already must be a
// directory itself, not a link to one.
func (d *dest) mkdir(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mkdirLocked(name)
}

func (d *dest) mkdirLocked(name string) error {
	if d.known[name] {
		return nil
	}
	if err := d.mkdirLocked(parent(name)); err != nil {
		return err
	}
	if err := d.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := d.root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s %w: a directory must go there", name, errInTheWay)
	}
	d.known[name] = true
	return nil
}

// lstat tells of what stands at path, and nothing where a link or a file stands
// in the place of a directory above it.
func (d *dest) lstat(name string) (fs.FileInfo, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range name {
		if c != '/' || d.known[name[:i]] {
			continue
		}
		info, err := d.root.Lstat(name[:i])
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			return nil, fs.ErrNotExist
		}
		d.known[name[:i]] = true
	}
	return d.root.Lstat(name)
}

// create makes a new temporary file of the given size; the room for a size
// above 0 is taken at once, so that a full disk is noticed before anything is
// fetched.
func (d *dest) create(temp string, size int64) (*os.File, error) {
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
		_ = d.tmp.Remove(temp)
		return nil, fmt.Errorf("take %d bytes for %s: %w", size, temp, err)
	}
	return file, nil
}

// createEmpty makes a new temporary file in its shelf, which is open already: os.Root
// would walk to it and ask whether it can be polled, with six system calls more, which
// tell where files are small. O_EXCL follows no link.
func (d *dest) createEmpty(temp string) (*os.File, error) {
	dir, file, err := d.onShelf(temp)
	if err != nil {
		return nil, err
	}
	for {
		fd, err := unix.Openat(int(dir.Fd()), file, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
		if errors.Is(err, unix.EINTR) { // as file systems of the network have it
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("make temporary file %s: %w", temp, err)
		}
		return os.NewFile(uintptr(fd), temp), nil
	}
}

// reopen opens a temporary file that an earlier run has left.
func (d *dest) reopen(temp string) (*os.File, error) {
	info, err := d.tmp.Lstat(temp)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w: it is not a regular file", temp, errInTheWay)
	}
	return d.tmp.OpenFile(temp, os.O_RDWR, 0)
}

// taken is how many bytes of the disk a temporary file has; 0 where there is none.
func (d *dest) taken(temp string) int64 {
	info, err := d.tmp.Lstat(temp)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// openDir makes a directory where it is missing and opens it, to publish files in
// it. What is opened is a real directory of the destination, not a link.
func (d *dest) openDir(name string) (*os.File, error) {
	if err := d.mkdir(name); err != nil {
		return nil, err
	}
	if name == "" {
		name = "."
	}
	return d.root.Open(name)
}

// publish gives a temporary file its name in a directory that openDir opened.
func (d *dest) publish(temp string, dir *os.File, name string) error {
	from, file, err := d.onShelf(temp)
	if err != nil {
		return err
	}
	err = unix.Renameat(int(from.Fd()), file, int(dir.Fd()), name)
	if errors.Is(err, unix.EISDIR) {
		return fmt.Errorf("%s %w: a directory stands where a file must go", name, errInTheWay)
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", temp, name, err)
	}
	return nil
}

// onShelf is the open directory of a temporary file, and the file's name in it.
func (d *dest) onShelf(temp string) (*os.File, string, error) {
	shelf, file := path.Split(temp)
	dir, err := d.shelf(strings.TrimSuffix(shelf, "/"))
	return dir, file, err
}

// shelf opens a directory of temporary files, once. Workers have shelves of their
// own: many that make files in one directory wait for each other.
func (d *dest) shelf(name string) (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if dir := d.shelves[name]; dir != nil {
		return dir, nil
	}
	if name != "" {
		if err := d.tmp.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	dir, err := d.tmp.Open(path.Join(".", name))
	if err == nil {
		d.shelves[name] = dir
	}
	return dir, err
}

// openFile opens a regular file at its name for reading.
func (d *dest) openFile(name string) (*os.File, error) {
	info, err := d.lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w: it is not a regular file", name, errInTheWay)
	}
	return d.root.Open(name)
}

// sync makes everything durable that was written and named so far: one call for
// any number of files.
func (d *dest) sync() error {
	if err := unix.Syncfs(int(d.dir.Fd())); err != nil {
		return fmt.Errorf("sync destination: %w", err)
	}
	return nil
}

// sweep removes temporary files that keep does not name, and tells how many.
func (d *dest) sweep(keep map[string]bool) (removed int, err error) {
	err = fs.WalkDir(d.tmp.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || keep[name] {
			return err
		}
		if err := d.tmp.Remove(name); err != nil {
			return fmt.Errorf("remove %s/%s: %w", tmpDir, name, err)
		}
		removed++
		return nil
	})
	return removed, err
}

// clear removes all that is temporary, once nothing is.
func (d *dest) clear() error {
	if _, err := d.sweep(nil); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, dir := range d.shelves {
		_ = dir.Close()
		delete(d.shelves, name)
	}
	names, err := fs.ReadDir(d.tmp.FS(), ".")
	for _, shelf := range names {
		err = errors.Join(err, d.tmp.Remove(shelf.Name()))
	}
	return err
}

// remove removes a file, and the directories above it that are empty then.
func (d *dest) remove(name string) error {
	info, err := d.lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s %w: it is not the regular file that was fetched", name, errInTheWay)
	}
	if err := d.root.Remove(name); err != nil {
		return err
	}
	for dir := parent(name); dir != ""; dir = parent(dir) {
		if d.root.Remove(dir) != nil { // not empty
			break
		}
		d.mu.Lock()
		delete(d.known, dir)
		d.mu.Unlock()
	}
	return nil
}

// writeWhole writes a small file of the control directory: temporary, sync,
// rename, sync. All that was written before is durable before the file has its name.
func (d *dest) writeWhole(name string, data []byte) error {
	temp := strings.ReplaceAll(path.Base(name), ".", "-") + ".new"
	_ = d.tmp.Remove(temp)
	file, err := d.create(temp, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := d.sync(); err != nil {
		return err
	}
	if err := d.root.Rename(path.Join(tmpDir, temp), name); err != nil {
		return err
	}
	return d.sync()
}

// folds tells whether the file system takes names for one that differ by case.
func (d *dest) folds() (bool, error) {
	const upper, lower = "CASE", "case"
	_ = d.tmp.Remove(upper)
	file, err := d.create(upper, 0)
	if err != nil {
		return false, err
	}
	_ = file.Close()
	_, err = d.tmp.Lstat(lower)
	if removeErr := d.tmp.Remove(upper); removeErr != nil {
		return false, removeErr
	}
	return err == nil, nil
}

// Prepare makes sure that a directory is there and can be written to, as a cache
// needs that others will fill.
func Prepare(name string, progress *Progress) error {
	d, err := openDest(name)
	if err == nil {
		defer d.close()
		// What an earlier fetch wrote there stays: it says what is here.
		if _, statErr := d.root.Lstat(completeFile); statErr != nil {
			err = d.writeWhole(completeFile, []byte("{}\n"))
		}
	}
	if err != nil {
		err = failed(fmt.Errorf("prepare %s: %w", name, err))
		progress.Fail(err.Error(), false)
		return err
	}
	progress.set(protocol.StateComplete, "the directory is ready")
	return nil
}
