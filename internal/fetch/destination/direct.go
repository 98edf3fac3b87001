package destination

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DirectBlock is the alignment of direct writes: no disk has larger sectors.
const DirectBlock = 4096

// OpenDirect opens a temporary file a second time, for writes that go from a worker's buffer directly
// to the disk. A large object must be on disk before it gets its name; the page cache would cost
// another copy and evict other data. It returns nil if the file system does not support direct writes.
// Direct writes are not used for files that are read again to be verified.
func (d *Dir) OpenDirect(temp string) *os.File {
	dir, file, err := d.inSubdir(temp)
	if err != nil {
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), file, unix.O_WRONLY|unix.O_DIRECT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), temp)
}

// WriteAt writes aligned data directly to the disk, and the rest, the end of an object, through the
// page cache.
func WriteAt(file, direct *os.File, data []byte, at int64) error {
	n := 0
	if direct != nil && aligned(data, at) {
		n = len(data) &^ (DirectBlock - 1)
		_, err := direct.WriteAt(data[:n], at)
		if errors.Is(err, unix.EINVAL) { // the disk needs another alignment
			n, err = 0, nil
		}
		if err != nil {
			return err
		}
	}
	if n == len(data) {
		return nil
	}
	_, err := file.WriteAt(data[n:], at+int64(n))
	return err
}

func aligned(data []byte, at int64) bool {
	return len(data) >= DirectBlock && at%DirectBlock == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(data)))%DirectBlock == 0
}

// NewBuffer returns a buffer of whole pages that may be written directly.
func NewBuffer(size int64) []byte {
	raw := make([]byte, size+DirectBlock)
	skip := -int64(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (DirectBlock - 1)
	return raw[skip : skip+size : skip+size]
}
