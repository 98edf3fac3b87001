package xfs

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Groups says where the allocation groups of a file system may begin that Mkfs made. It
// is told how many there are, and makes them of one size; it rounds that size up to the
// stripe unit that it believes the device to have (align_ag_geometry in mkfs/xfs_mkfs.c).
type Groups struct {
	Count  int
	Sizes  []volume.Bytes // that the device may have had then
	Aligns []volume.Bytes // that the device may ask for; 0 is none
}

// starts are the places of all groups but the first.
func (g Groups) starts() (all []volume.Bytes) {
	for _, size := range g.Sizes {
		blocks := size / volume.Block
		group := (blocks + volume.Bytes(g.Count) - 1) / volume.Bytes(g.Count) * volume.Block
		for _, align := range append([]volume.Bytes{volume.Block}, g.Aligns...) {
			if align <= 0 || align%volume.Block != 0 {
				continue
			}
			for n := range g.Count - 1 {
				all = append(all, group.RoundUp(align)*volume.Bytes(n+1))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// FindCopy looks for a copy of the superblock of the file system uuid that says that
// mkfs came to its end, on a device of that size whose own superblock is of no use. It
// gives its place, or ErrNoFilesystem where there is none.
//
// Every allocation group begins with a copy. mkfs writes all of them before it finishes
// the first, and marks each as in progress (sb_inprogress in libxfs, xfs_sbblock_init);
// nor does it take that mark away. The kernel does, when it grows the file system
// (xfs_update_secondary_sbs writes the copies anew), also by nothing. So a copy without
// the mark was written on a mounted file system, and what a killed mkfs leaves has none.
func FindCopy(r io.ReaderAt, size volume.Bytes, uuid string, g Groups) (volume.Bytes, error) {
	for _, at := range g.starts() {
		if at+maxSector > size {
			continue
		}
		sb, err := ReadSuperblock(io.NewSectionReader(r, int64(at), maxSector))
		if err != nil && !errors.Is(err, ErrNoFilesystem) {
			return 0, fmt.Errorf("look for a copy of the superblock at byte %d: %w", int64(at), err)
		}
		if err == nil && sb.UUID == uuid {
			return at, nil
		}
	}
	return 0, ErrNoFilesystem
}
