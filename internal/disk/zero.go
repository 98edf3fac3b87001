package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNotZero: the device holds bytes that are not zero.
var ErrNotZero = errors.New("does not read as zeros")

// samples is how many pieces of a device, of a MiB each, CheckZeroSamples reads.
const samples = 16

// CheckZeroSamples fails unless pieces of the device, including its first and its last MiB, contain
// nothing but zeros. A disk whose signatures were cleared still holds what somebody may want back,
// and data without a signature is data. CheckZeroSamples opens the device exclusively, and drops the
// page cache's older view of it.
func CheckZeroSamples(path string) error { return checkZero(path, samples) }

// CheckZeroEnds is CheckZeroSamples for the first and the last MiB alone.
func CheckZeroEnds(path string) error { return checkZero(path, 2) }

func checkZero(path string, pieces int64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("device %s: cannot tell whether it is blank, so it is not touched: it is in use (the kernel lets nobody else open it)", path)
	}
	if err != nil {
		return fmt.Errorf("device %s: cannot tell whether it is blank, so it is not touched: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("device %s: cannot tell whether it is blank, so it is not touched: find its size: %w", path, err)
	}
	// The cache may hold what was read from another medium in the same drive.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	piece := make([]byte, volume.MiB)
	zeros := make([]byte, volume.MiB)
	for _, at := range positions(size, pieces) {
		n, err := f.ReadAt(piece, at)
		if err != nil {
			return fmt.Errorf("device %s: cannot tell whether it is blank, so it is not touched: read it at %d: %w", path, at, err)
		}
		if !bytes.Equal(piece[:n], zeros[:n]) {
			return fmt.Errorf("device %s: %w: it has no signature, and holds bytes that are not zero in the MiB at %d; if nobody wants them, clear it with `blkdiscard --zeroout %s`", path, ErrNotZero, at, path)
		}
	}
	return nil
}

// positions returns the offsets at which to read this many pieces, at least two, of a device of
// size bytes: at both ends, and evenly between.
func positions(size, pieces int64) []int64 {
	last := size - int64(volume.MiB)
	var all []int64
	for i := range pieces {
		at := last / (pieces - 1) * i
		if i == pieces-1 {
			at = last
		}
		all = append(all, at-at%4096)
	}
	all[pieces-1] = last
	return all
}
