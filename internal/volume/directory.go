package volume

import "errors"

// Directory volumes are not logical volumes. Each is a directory in the XFS of a directory pool,
// which is a logical volume. A pool is charged for a directory volume what the volume's quota
// allows, and everything that XFS keeps besides.

const (
	// DirectoryInodeRatio is the size per inode of a directory volume for which no limit on inodes
	// is requested, and minDirectoryInodes the fewest inodes such a volume may have.
	DirectoryInodeRatio = 16 * KiB
	minDirectoryInodes  = 64
	// directoryOverhead is what a directory volume takes besides its data and inodes: its record,
	// its parent directories, and its entry in the quota table.
	directoryOverhead = 16 * KiB
	// MinDirectory is the smallest size of a directory volume. XFS creates a file only if the quota
	// has room for the worst case, about 200 KiB, although the file takes none of that. In a
	// smaller volume no file could be created.
	MinDirectory = 512 * KiB
	// MinDirectoryPool is the smallest size of a directory pool.
	MinDirectoryPool = 64 * MiB
)

// DirectoryInodes returns the limit on the inodes of a directory volume of this size: the requested
// limit, or one inode per DirectoryInodeRatio and at least minDirectoryInodes. Inodes do not
// count toward the size.
func DirectoryInodes(size Bytes, asked int64) int64 {
	if asked > 0 {
		return asked
	}
	return max(minDirectoryInodes, int64(size/DirectoryInodeRatio))
}

// DirectorySize returns the space that a directory volume of this size takes of its pool. inodes is
// the requested limit; 0 means none.
func DirectorySize(size Bytes, inodes int64) Bytes {
	return size.RoundUp(Block) + inodeRoom(DirectoryInodes(size, inodes)).RoundUp(Block) + directoryOverhead
}

// ParseDirectoryPool checks the name of a directory pool within its group. The error is a
// *FieldError.
func ParseDirectoryPool(field, s string) (Name, error) { return ParseName(field, s) }

// tagDirectories is the kind of a logical volume that is a directory pool. ParseKind does not know
// it, so a directory pool is never mistaken for a volume.
const tagDirectories = tagKind + "directories"

// A DirectoryPool describes the logical volume of a directory pool in LVM's metadata.
type DirectoryPool struct {
	State State // Creating until its file system is complete, then Ready
	FS    string
	// Size is the total that volumes may take of the pool.
	Size Bytes
}

// Strings returns the tags as LVM keeps them.
func (p DirectoryPool) Strings() []string {
	return []string{TagOwned, tagDirectories, p.State.Tag(), tagFS + p.FS, SizeTag(p.Size)}
}

// OwnedDirectoryPool reports whether a logical volume with these tags is a flexlvm directory pool.
func OwnedDirectoryPool(tags []string) bool {
	kind := false
	for _, t := range tags {
		kind = kind || t == tagDirectories
	}
	return kind && Owned(tags)
}

// ParseDirectoryPoolTags parses the tags of a directory pool as strictly as ParseTags does those
// of a volume. The error is a *FieldError.
func ParseDirectoryPoolTags(tags []string) (p DirectoryPool, err error) {
	found, err := tagValues(tags)
	if err != nil {
		return p, err
	}
	if kind := tagKind + found[tagKind]; kind != tagDirectories {
		return p, invalid("tag", kind, "is not that of a directory pool, %s", tagDirectories)
	}
	state, err := ParseState(tagState, found[tagState])
	if err == nil && state != Creating && state != Ready {
		err = invalid(tagState, string(state), "is not a state of a directory pool")
	}
	size, sizeErr := ParseBytes(tagSize, found[tagSize])
	if p = (DirectoryPool{State: state, FS: found[tagFS], Size: size}); !fsUUID(p.FS) {
		err = errors.Join(err, invalid(tagFS, p.FS, "is not the UUID of a file system"))
	}
	for _, key := range []string{tagKind, tagState, tagSize, tagFS} {
		delete(found, key)
	}
	for key := range found {
		err = errors.Join(err, unknown("tag", key, ""))
	}
	return p, errors.Join(err, sizeErr)
}

// validateDirectory rejects options that a directory volume cannot have.
func (s Spec) validateDirectory() error {
	const instead = "; use another layout"
	switch {
	case s.Size < MinDirectory:
		return invalid(OptionSize, number(int64(s.Size)), "is less than %d, the least with layout %s: XFS makes no file in less", int64(MinDirectory), Directory)
	case s.DirectoryPool == "":
		return invalid(OptionDirectoryPool, "", "is required with layout %s: name the directory pool that volumes are made in", Directory)
	case s.DirectoryPool == s.Name:
		return invalid(OptionDirectoryPool, string(s.DirectoryPool), "is the name of the volume itself")
	case s.FSType == Raw:
		return invalid(OptionVolumeMode, ModeBlock, "does not belong to layout %s, whose volumes have no device"+instead, Directory)
	case s.FSType != XFS:
		return invalid(OptionFSType, s.FSType.String(), "does not belong to layout %s, whose volumes share one XFS"+instead, Directory)
	case s.Encrypted:
		return invalid(OptionEncrypted, "true", "does not belong to layout %s, whose volumes share one XFS"+instead, Directory)
	case s.Kind != Claim:
		return invalid(OptionKind, string(s.Kind), "does not belong to layout %s: its volumes are no replicas of datasets, and no snapshots are taken of them"+instead, Directory)
	case s.CloneOf != "":
		return invalid(OptionCloneOf, string(s.CloneOf), "does not belong to layout %s, whose volumes are not copied"+instead, Directory)
	}
	return checkDeviceName(OptionDirectoryPool, s.Group, s.DirectoryPool, Linear)
}
