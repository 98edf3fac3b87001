package volume

import (
	"fmt"
	"strconv"
	"strings"
)

// A Reserve is how much of what a copy-on-write snapshot may ever need is set aside for it, in
// percent. The zero value is all of it: such a snapshot never overflows.
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

// Chunks of copy-on-write snapshots. Each chunk of the source that is overwritten is copied
// whole, and the kernel keeps some 32 bytes in memory for it: 512 MiB for a TiB in chunks of
// 64 KiB, 8 GiB in chunks of 4 KiB (LVM's default).
const (
	cowChunk      = 64 * KiB
	leastCOWChunk = 4 * KiB
	cowException  = 16 // bytes on disk for a chunk (kernel: dm-snap-persistent.c)
)

// COWStore returns the size of the store of a copy-on-write snapshot of a device of this size,
// and its chunks. In full it is what LVM allows at most: a header, all chunks, and a chunk of
// exceptions for so many of them.
func COWStore(device, extent Bytes, r Reserve) (size, chunk Bytes) {
	extent = grain(extent)
	chunk = cowChunk
	for chunk > leastCOWChunk && cowNeed(device, chunk).RoundUp(extent) < cowNeed(device, chunk)+chunk {
		// The kernel clears the next chunk of exceptions as soon as one is full, also the
		// last, and without room for that the snapshot is invalid.
		chunk /= 2
	}
	size = cowNeed(device, chunk)
	if r != 0 {
		size = size/100*Bytes(r) + size%100*Bytes(r)/100
	}
	return size.RoundUp(extent), chunk
}

// cowNeed is what a snapshot takes of which every chunk was overwritten.
func cowNeed(device, chunk Bytes) Bytes {
	chunks, of := device.RoundUp(chunk)/chunk, chunk/cowException
	return (1 + chunks + chunks.RoundUp(of)/of) * chunk
}

// CopyOnWrite reports whether the volume is a snapshot with a store of its own, into which is
// copied what its source overwrites: one of a thick volume.
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
