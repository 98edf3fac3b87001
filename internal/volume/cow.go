package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// A Reserve is the share, in percent, of the space a copy-on-write snapshot could ever need that is
// set aside for it. The zero value means all of it, so that the snapshot never overflows.
type Reserve int

// ParseReserve parses a percentage such as "30%". The error is a *FieldError.
func ParseReserve(field, s string) (Reserve, error) {
	digits, percent := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(digits)
	if err != nil || !percent || n < 1 || n > 100 || digits != strconv.Itoa(n) {
		return 0, invalid(field, s, "is not a percentage from 1%% to 100%%, such as 30%%")
	}
	return Reserve(n), nil
}

// String returns what ParseReserve reads; empty for the zero value.
func (r Reserve) String() string {
	if r == 0 {
		return ""
	}
	return fmt.Sprintf("%d%%", int(r))
}

// Chunk sizes of copy-on-write snapshots. Each chunk of the source that is overwritten is copied
// whole, and the kernel keeps about 32 bytes of memory for it: 512 MiB for a TiB in chunks of 64
// KiB, 8 GiB in chunks of 4 KiB (LVM's default).
const (
	cowChunk     = 64 * KiB
	minCOWChunk  = 4 * KiB
	cowException = 16 // bytes on disk for a chunk (kernel: dm-snap-persistent.c)
)

// COWStore returns the size of the store of a copy-on-write snapshot of a device of this size, and
// its chunk size. The full store is the largest that LVM allows: a header, all chunks, and the
// chunks of exceptions for them.
func COWStore(device, extent Bytes, r Reserve) (size, chunk Bytes) {
	extent = grain(extent)
	chunk = cowChunk
	for chunk > minCOWChunk && cowNeed(device, chunk).RoundUp(extent) < cowNeed(device, chunk)+chunk {
		// The kernel clears the next chunk of exceptions as soon as one is full, even after the
		// last one, and the snapshot becomes invalid if there is no room for it.
		chunk /= 2
	}
	size = cowNeed(device, chunk)
	if r != 0 {
		size = size/100*Bytes(r) + size%100*Bytes(r)/100
	}
	return size.RoundUp(extent), chunk
}

// cowNeed returns the space a snapshot takes once every chunk of its source was overwritten.
func cowNeed(device, chunk Bytes) Bytes {
	chunks, of := device.RoundUp(chunk)/chunk, chunk/cowException
	return (1 + chunks + chunks.RoundUp(of)/of) * chunk
}

// CopyOnWrite reports whether the volume is a snapshot of a thick volume. Such a snapshot has its
// own store, to which the chunks that its source overwrites are copied.
func (s Spec) CopyOnWrite() bool { return s.Kind == Snapshot && s.Layout != Thin }

func (s Spec) validateReserve() error {
	switch {
	case s.CopyOnWrite() && s.Layout != Linear:
		return invalid(OptionLayout, string(s.Layout), "does not belong to kind %s; it is %s, or %s", Snapshot, Linear, Thin)
	case s.Reserve != 0 && !s.CopyOnWrite():
		return invalid(OptionReserve, s.Reserve.String(), "belongs to kind %s and layout %s; remove it", Snapshot, Linear)
	}
	return nil
}
