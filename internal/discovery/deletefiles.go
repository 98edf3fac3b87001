package discovery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/quota"
)

const (
	// beneath keeps a lookup below a directory, in its file system and its mount, and follows no
	// link.
	beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV
	// maxDepth is the depth from which directories are moved up before they are deleted, so that no
	// depth takes more open files than that.
	maxDepth = 64
	// dirBatch is how many entries of a directory are read at a time.
	dirBatch = 256
	// lostAndFound is created with an ext4 file system, and belongs to it.
	lostAndFound = "lost+found"
)

// checkUnusedFunc is called again and again during a cleaning. An error ends the cleaning.
type checkUnusedFunc func() error

// deleteFiles deletes the content of a file system or directory, which must be the one that was found, and resets its
// topmost directory to owner. It may be killed at any moment, and called again. Killed in between, it may leave the
// directory without its project; the next call restores the project even if that call fails. It deletes nothing
// outside the directory: it follows no link, enters no mount below, and is safe against a tenant that moves a
// directory meanwhile.
func deleteFiles(ctx context.Context, f Found, owner *Owner, limiter *rateLimiter, checkUnused checkUnusedFunc) error {
	if err := checkUnused(); err != nil {
		return err
	}
	top, err := openTop(f)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	d := deleter{ctx: ctx, top: top, limiter: limiter, checkUnused: checkUnused}
	if d.was, err = quota.AttributesOf(top); err != nil {
		return err
	}
	if err := d.empty(top, 0); err != nil {
		return errors.Join(err, d.rejoinProject(owner))
	}
	if owner == nil { // the project from before the tenant is unknown
		if err := d.leaveProject(); err != nil {
			return err
		}
	}
	return errors.Join(restore(top, owner), unix.Syncfs(int(top.Fd())))
}

// openTop opens the topmost directory of what was found, if it is still the same.
func openTop(f Found) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, f.Path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Path, Err: err}
	}
	top := os.NewFile(uintptr(fd), f.Path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, top.Close())
	}
	if st.Dev != f.Number {
		return nil, errors.Join(errors.New("the file system is not the one that was found"), top.Close())
	}
	is, err := dirIDOf(fd, "")
	if err == nil && is != (dirID{mount: f.Mount, inode: f.Inode}) {
		err = errors.New("the directory or mount is not the one that was found")
	}
	if err != nil {
		return nil, errors.Join(err, top.Close())
	}
	return top, nil
}

// A deleter empties a directory.
type deleter struct {
	ctx         context.Context
	top         *os.File
	limiter     *rateLimiter
	checkUnused checkUnusedFunc
	checks      throttle
	moved       int
	was         quota.Attributes // of top at the beginning
	left        bool             // top may no longer be in its project
}

// leaveProject removes the topmost directory from its project: the kernel refuses to move a directory of another
// project into a directory whose project is inherited.
func (d *deleter) leaveProject() error {
	if d.left {
		return nil
	}
	d.left = true
	return explainPermission(quota.LeaveProject(d.top))
}

// rejoinProject restores the project of the topmost directory after a deletion that stopped early, so that the
// remaining files stay under its quota. It restores the project that was recorded when the directory was offered,
// because an earlier process may have been killed, or else the one that the directory had at the beginning.
func (d *deleter) rejoinProject(owner *Owner) error {
	switch {
	case owner != nil && owner.Attributes != nil:
		return explainPermission(quota.SetProject(d.top, *owner.Attributes))
	case d.left:
		return explainPermission(quota.SetProject(d.top, d.was))
	}
	return nil
}

// empty deletes the content of a directory.
func (d *deleter) empty(dir *os.File, depth int) error {
	for {
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		entries, err := dir.ReadDir(dirBatch)
		if errors.Is(err, io.EOF) || err == nil && len(entries) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		left := 0
		for _, e := range entries {
			keep, err := d.remove(dir, e, depth)
			if err != nil {
				return err
			}
			if keep {
				left++
			}
		}
		if left == len(entries) {
			return nil
		}
	}
}

// remove deletes one entry; keep is true if the entry stays.
func (d *deleter) remove(dir *os.File, e fs.DirEntry, depth int) (keep bool, err error) {
	if err := d.limiter.wait(d.ctx, 1); err != nil {
		return false, err
	}
	if d.checks.due() {
		if err := d.checkUnused(); err != nil {
			return false, err
		}
	}
	at := int(dir.Fd())
	// Anything but a directory is unlinked by its name, and links are not followed.
	err = unix.Unlinkat(at, e.Name(), 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if !errors.Is(err, unix.EISDIR) {
		return false, explain("delete", e.Name(), err)
	}
	if depth >= maxDepth {
		return false, d.moveUp(at, e.Name())
	}
	stays := depth == 0 && e.Name() == lostAndFound
	var owner *Owner
	if stays { // the last tenant may have changed its owner; mkfs made root the owner
		owner = &Owner{UID: os.Geteuid(), GID: os.Getegid(), Mode: 0o700}
	}
	if err := d.emptyBelow(at, e.Name(), depth, owner); err != nil || stays {
		return stays, err
	}
	if err := unix.Unlinkat(at, e.Name(), unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, explain("delete", e.Name(), err)
	}
	return false, nil
}

// moveUp moves a directory into the topmost directory, where it is deleted later.
func (d *deleter) moveUp(at int, name string) error {
	if err := d.leaveProject(); err != nil {
		return err
	}
	d.moved++
	to := ".flexlvm-cleaning-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(d.moved)
	if err := unix.Renameat2(at, name, int(d.top.Fd()), to, unix.RENAME_NOREPLACE); err != nil && !errors.Is(err, unix.EEXIST) {
		return explain("move", name, err)
	}
	return nil
}

// emptyBelow deletes the content of a directory, and then restores the directory to owner unless
// that is nil.
func (d *deleter) emptyBelow(at int, name string, depth int, owner *Owner) error {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		return explain("open", name, err)
	}
	below := os.NewFile(uintptr(fd), name)
	defer func() { _ = below.Close() }()
	if err := d.empty(below, depth+1); err != nil {
		return err
	}
	return restore(below, owner)
}

// explain adds what the kernel's error means here.
func explain(op, name string, err error) error {
	err = &os.PathError{Op: op, Path: name, Err: err}
	switch {
	case op == "move" && errors.Is(err, unix.EXDEV):
		return fmt.Errorf("%w: it has another project, or another encryption policy, than the topmost directory; delete it by hand", err)
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: something is mounted there; unmount it", err)
	}
	return explainPermission(err)
}

// explainPermission adds that a flag set by the tenant, or by a person, may have caused the error.
func explainPermission(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: it may be immutable; see `lsattr`, and clear that with `chattr -i -a`", err)
	}
	return err
}

// restore gives a directory that stays the owner, mode and inode attributes that it had before the
// tenant, and removes its extended attributes: otherwise the next tenant could read the access
// lists and everything else that the last one has set, and files would inherit flags, a project and
// an extent size. It does nothing if owner is nil.
func restore(dir *os.File, owner *Owner) error {
	if owner == nil {
		return nil
	}
	fd := int(dir.Fd())
	names, err := attributes(fd)
	if err != nil {
		return fmt.Errorf("list its attributes: %w", err)
	}
	for _, name := range names {
		if name == "security.selinux" {
			continue
		}
		if err := unix.Fremovexattr(fd, name); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("remove attribute %s: %w", name, err)
		}
	}
	if err := errors.Join(unix.Fchown(fd, owner.UID, owner.GID), unix.Fchmod(fd, owner.Mode)); err != nil {
		return explain("restore", dir.Name(), err)
	}
	return explainPermission(quota.SetAttributes(dir, owner.restored()))
}

func attributes(fd int) (out []string, err error) {
	size, err := unix.Flistxattr(fd, nil)
	if errors.Is(err, unix.EOPNOTSUPP) || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]byte, size)
	if size, err = unix.Flistxattr(fd, names); err != nil {
		return nil, err
	}
	start := 0
	for i, b := range names[:size] {
		if b == 0 {
			out = append(out, string(names[start:i]))
			start = i + 1
		}
	}
	return out, nil
}

// ownerOf returns the owner, the mode and the attributes of the topmost directory of a file system.
func ownerOf(f Found) (*Owner, error) {
	top, err := openTop(f)
	if err != nil {
		return nil, err
	}
	defer func() { _ = top.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(top.Fd()), &st); err != nil {
		return nil, err
	}
	a, err := quota.AttributesOf(top)
	if err != nil {
		return nil, err
	}
	return &Owner{UID: int(st.Uid), GID: int(st.Gid), Mode: st.Mode & 0o7777, Attributes: &a}, nil
}

// checkEmptyDirectory fails unless a file system is empty, durably, and its topmost directory has the
// attributes of owner, if those are recorded: files of the next tenant would inherit what the last
// one has set there.
func checkEmptyDirectory(f Found, owner *Owner) error {
	top, err := openTop(f)
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	entries, err := top.ReadDir(2) // one of them may be lost+found
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, e := range entries {
		if e.Name() != lostAndFound || !e.IsDir() {
			return notEmptyError(f, e.Name())
		}
		if err := checkEmptyLostAndFound(top, f); err != nil {
			return err
		}
	}
	if owner != nil && owner.Attributes != nil {
		if err := checkAttributes(top, *owner.Attributes); err != nil {
			return err
		}
	}
	return top.Sync()
}

// checkAttributes fails unless a directory has these attributes.
func checkAttributes(top *os.File, want quota.Attributes) error {
	is, err := quota.AttributesOf(top)
	if err == nil && is != want {
		err = fmt.Errorf("%s has %s, and had %s when it was first offered or last cleaned; set that with `chattr` and `xfs_io` (`lsattr -dp` and `xfs_io -r -c stat` show it)", top.Name(), is, want)
	}
	return err
}

func notEmptyError(f Found, name string) error {
	return fmt.Errorf("%s contains %q and perhaps more; delete the files that nobody needs", f.Path, name)
}

// checkEmptyLostAndFound fails unless lost+found is empty, durably: a repair of the file system puts files of
// the last tenant there.
func checkEmptyLostAndFound(top *os.File, f Found) error {
	fd, err := unix.Openat2(int(top.Fd()), lostAndFound, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: beneath})
	if err != nil {
		return explain("open", lostAndFound, err)
	}
	dir := os.NewFile(uintptr(fd), lostAndFound)
	defer func() { _ = dir.Close() }()
	switch left, err := dir.ReadDir(1); {
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case len(left) > 0:
		return notEmptyError(f, lostAndFound+"/"+left[0].Name())
	}
	return dir.Sync()
}
