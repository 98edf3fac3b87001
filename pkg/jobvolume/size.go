package jobvolume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrTooLarge means that a worker's directory takes more space than the worker's share.
var ErrTooLarge = errors.New("it uses more than the worker's share of the volume")

// Size returns how many bytes of the volume each worker may use, from $FLEXLVM_WORKER_SIZE; 0 if that is not
// set. If the worker has its own volume, writing more fails. If workers share a volume, at most the size of
// the whole volume is enforced, and on NFS only if the StorageClass asks for it.
func Size() (int64, error) {
	text := os.Getenv(EnvSize)
	if text == "" {
		return 0, nil
	}
	size, err := strconv.ParseInt(text, 10, 64)
	if err != nil || size < 0 {
		return 0, fmt.Errorf("job volume: %s is %q; it must be a number of bytes", EnvSize, text)
	}
	return size, nil
}

// Used returns how many bytes this worker's directory takes on the volume, counted as by du: a file with
// several hard links counts once. Files that are removed meanwhile do not count. It returns 0 if the directory
// does not exist yet.
func (v Volume) Used() (int64, error) {
	var sum usage
	err := filepath.WalkDir(v.WorkerDirPath(), func(path string, entry fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, is := info.Sys().(*syscall.Stat_t)
		if !is {
			return fmt.Errorf("determine the size of %s: the system does not report its disk usage", path)
		}
		sum.add(st, entry.IsDir())
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("job volume: %w", err)
	}
	return sum.bytes, nil
}

// usage is the disk usage of files.
type usage struct {
	bytes int64
	seen  map[inode]bool // only of files with several hard links: a worker may have millions of files with one
}

type inode struct{ device, number uint64 }

func (u *usage) add(st *syscall.Stat_t, directory bool) {
	if st.Nlink > 1 && !directory {
		one := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // int32 on some platforms
		if u.seen[one] {
			return
		}
		if u.seen == nil {
			u.seen = map[inode]bool{}
		}
		u.seen[one] = true
	}
	u.bytes += st.Blocks * 512
}

// CheckSize returns an error that wraps ErrTooLarge if this worker's directory takes more than Size. It is for
// volumes whose server does not enforce sizes: a worker calls it periodically, and exits before it uses
// the space of others.
func (v Volume) CheckSize() error {
	size, err := Size()
	if err != nil || size == 0 {
		return err
	}
	used, err := v.Used()
	if err == nil && used > size {
		err = fmt.Errorf("job volume: %s uses %d bytes of %d: %w", v.WorkerDirPath(), used, size, ErrTooLarge)
	}
	return err
}
