package xfs

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrCannotTrim: what the file system lies on takes no discards.
var ErrCannotTrim = errors.New("the device takes no discards")

// trimRange is struct fstrim_range (linux/fs.h).
type trimRange struct {
	start, length, least uint64
}

const fiTrim = 0xc0185879 // FITRIM

// Extent is the size of a mounted file system, and of its allocation groups, which no free
// extent reaches beyond.
type Extent struct {
	Size, Group volume.Bytes
}

// ReadExtent returns the extent of the file system that contains root.
func ReadExtent(root *os.File) (Extent, error) {
	g, err := readGeometry(root)
	if err != nil {
		return Extent{}, err
	}
	block := volume.Bytes(g.blockSize)
	return Extent{Size: volume.Bytes(g.dataBlocks) * block, Group: volume.Bytes(g.groupSize) * block}, nil
}

// Trim discards what is free in a range of the mounted file system that contains root, and
// returns how much that was. The range must begin within the file system.
//
// Before Linux 6.10 the kernel discards a free extent that begins or ends in the range as a
// whole; then it returns more than length.
func Trim(root *os.File, at, length volume.Bytes) (volume.Bytes, error) {
	r := trimRange{start: uint64(at), length: uint64(length)}
	err := ioctl(root, fiTrim, unsafe.Pointer(&r))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return 0, fmt.Errorf("trim %s: %w", root.Name(), ErrCannotTrim)
	}
	if err != nil {
		return 0, fmt.Errorf("trim %s from byte %d: %w", root.Name(), int64(at), err)
	}
	return volume.Bytes(r.length), nil
}
