package xfs

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Groups describes where the allocation groups of a file system created by Mkfs may begin, for the
// case that its superblock is lost. mkfs.xfs is passed their number and gives them one size,
// rounded up to the stripe unit that the device reports (align_ag_geometry in mkfs/xfs_mkfs.c).
type Groups struct {
	Count  int
	Sizes  []volume.Bytes // that the device may have had at mkfs
	Aligns []volume.Bytes // stripe units that it may have reported; 0 is none
}

// starts returns the offsets of all groups but the first.
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

// starts returns the offsets of all groups of this file system but the first.
func (sb Superblock) starts() (all []volume.Bytes) {
	for n := 1; n < sb.groups; n++ {
		all = append(all, sb.group*volume.Bytes(n))
	}
	return all
}

// FindCopy searches for a superblock of the file system uuid that was written after mkfs, on a
// device of that size: the primary, or a copy. The offsets of the copies come from the primary, or
// from g if the primary cannot be used. FindCopy returns the offset in bytes, or ErrNoFilesystem if
// there is none.
//
// In the primary, sb_qflags shows that it was: a mount with quotas sets it, and mkfs leaves it 0.
//
// Every allocation group begins with a copy. mkfs writes all of them before it finishes the
// primary, and marks each as in progress (sb_inprogress in libxfs, xfs_sbblock_init); it never
// clears that mark. The kernel clears it when it grows the file system, even by nothing
// (xfs_update_secondary_sbs rewrites the copies). So a copy without the mark was written on a
// mounted file system, and a killed mkfs leaves none.
func FindCopy(r io.ReaderAt, size volume.Bytes, uuid string, g Groups) (volume.Bytes, error) {
	starts := g.starts()
	primary, err := ReadSuperblock(r)
	switch {
	case err == nil && primary.UUID == uuid && primary.mounted:
		return 0, nil
	case err == nil && primary.UUID == uuid:
		starts = primary.starts()
	case err != nil && !errors.Is(err, ErrNoFilesystem):
		return 0, err
	}
	for _, at := range starts {
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
