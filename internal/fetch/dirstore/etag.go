package dirstore

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// objectOf returns the object of a file. Its ETag includes the change time and, where it is stable, the inode number.
// These reveal changes that size and modification time do not, and a different file of the same name.
func (d *Directory) objectOf(name string, info fs.FileInfo) store.Object {
	o := store.Object{Key: d.source.Prefix + name, Size: info.Size(), Modified: info.ModTime().UTC()}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		o.ETag = d.etagOf(info)
	case mode&fs.ModeSymlink != 0:
		o.Unfetchable = "it is a symbolic link"
	default:
		o.Unfetchable = "it is not a regular file"
	}
	return o
}

// etagOf returns the ETag of a file.
func (d *Directory) etagOf(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	return d.etag(info.ModTime().UnixNano(), info.Size(), stat.Ctim.Nano(), stat.Ino)
}

// etagNow is etagOf for an open file, with the attributes from its file server: an NFS client answers fstat from its
// cache for up to a minute. statx is unix.Statx.
func (d *Directory) etagNow(file *os.File, statx func(dir int, path string, flags, mask int, s *unix.Statx_t) error) (string, error) {
	var s unix.Statx_t
	for {
		err := statx(int(file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &s)
		switch {
		case err == nil:
			return d.etag(nanoseconds(s.Mtime), int64(s.Size), nanoseconds(s.Ctime), s.Ino), nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // unknown to the kernel, or denied by the container runtime
			info, err := file.Stat()
			if err != nil {
				return "", err
			}
			return d.etagOf(info), nil
		default:
			return "", &fs.PathError{Op: "statx", Path: file.Name(), Err: err}
		}
	}
}

func nanoseconds(t unix.StatxTimestamp) int64 { return t.Sec*int64(time.Second) + int64(t.Nsec) }

// etag returns the ETag of a file with these modification and change times, this size and this inode number. The
// dots keep it from being taken for a hash.
func (d *Directory) etag(modified, size, changed int64, inode uint64) string {
	if d.unstableInodes {
		inode = 0
	}
	var tag []string
	for _, n := range []int64{modified, size, changed, int64(inode)} {
		tag = append(tag, strconv.FormatInt(n, 36))
	}
	return strings.Join(tag, ".")
}

// ChangeTime returns when a file was last changed in any way, from its ETag. Programs cannot set this time. If the
// ETag is not that of a file, it returns the current time.
func ChangeTime(etag string) time.Time {
	parts := strings.Split(etag, ".")
	if len(parts) == 4 {
		if n, err := strconv.ParseInt(parts[2], 36, 64); err == nil {
			return time.Unix(0, n)
		}
	}
	return time.Now()
}

// hasUnstableInodes reports whether the client of a directory's file system may choose inode numbers itself, so that
// the number of an unchanged file may change after a while, or at the next mount.
func hasUnstableInodes(root *os.Root) bool {
	dir, err := root.Open(".")
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }() // opened only for reading
	var s unix.Statfs_t
	return unix.Fstatfs(int(dir.Fd()), &s) == nil && inodesAreUnstable(s.Type)
}

// inodesAreUnstable is hasUnstableInodes for a file system type from statfs.
func inodesAreUnstable(fileSystem int64) bool {
	switch uint32(fileSystem) {
	case unix.FUSE_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC:
		return true
	}
	return false
}
