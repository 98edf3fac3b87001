package fetch

import (
	"errors"
	"os"
	"path"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directBlock is what direct writes are aligned to: no disk has larger sectors.
const directBlock = 4096

// openDirect opens a temporary file a second time, for writes that go from a
// worker's buffer to the disk. A large object must be on disk before it has its
// name; the way through the page cache costs the processor another copy, and
// takes from others what they have there. It is nil where the file system has
// no such writes. What is read again to be verified is not written so.
func (d *dest) openDirect(temp string) *os.File {
	file, err := d.tmp.OpenFile(path.Clean(temp), os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return file
}

// writeAt writes to the disk what is aligned, and through the page cache what is
// not: the end of an object.
func writeAt(file, direct *os.File, data []byte, at int64) error {
	n := 0
	if direct != nil && aligned(data, at) {
		n = len(data) &^ (directBlock - 1)
		_, err := direct.WriteAt(data[:n], at)
		if errors.Is(err, unix.EINVAL) { // another alignment than ours
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
	return len(data) >= directBlock && at%directBlock == 0 &&
		uintptr(unsafe.Pointer(unsafe.SliceData(data)))%directBlock == 0
}

// newBuffer makes a buffer of whole pages that may be written directly.
func newBuffer(size int64) []byte {
	raw := make([]byte, size+directBlock)
	skip := -int64(uintptr(unsafe.Pointer(unsafe.SliceData(raw)))) & (directBlock - 1)
	return raw[skip : skip+size : skip+size]
}
