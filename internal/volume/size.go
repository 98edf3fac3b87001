package volume

// DefaultExtent is LVM's default extent size, to which device sizes are rounded up. A
// group with larger extents rounds up further by itself.
const DefaultExtent = 4 * MiB

// LUKSHeader is the size of an encrypted volume's header, which precedes its content: cryptsetup's
// default.
const LUKSHeader = 16 * MiB

// minDevice is XFS's minimum size since xfsprogs 5.19 (mkfs.xfs: "Filesystem must be larger than
// 300MB").
const minDevice = 300 * MiB

const (
	inodeSize = 512 // bytes; mkfs.xfs's default for v5 file systems, and passed to mkfs
	minLog    = 64 * MiB
	maxLog    = 1 * GiB
	logShare  = 2048
	// fixedReserve covers the kernel's reserve pool (at most 8192 blocks = 32 MiB,
	// xfs_default_resblks), the headers and free lists of four allocation groups
	// and the first inode chunk.
	fixedReserve = 40 * MiB
	// btreeShare covers what the kernel sets aside in every allocation group so that its refcount
	// and free-inode trees can always grow (at worst one block in 254 and one in about 2,000), with
	// room to spare.
	btreeShare = 128
	// inodeShare is the room for inodes when no limit is requested: one of 512 bytes for every 32
	// KiB of data. A volume full of many smaller files reaches the end of the device before its
	// quota; `inodes` reserves room for them.
	inodeShare = 64
)

// LogSize returns the size of the XFS log for a volume of this size. mkfs does not choose it,
// because mkfs's default depends on the release of xfsprogs, and the pool is charged before mkfs
// runs.
func LogSize(size Bytes) Bytes {
	return min(max(size/logShare, minLog), maxLog).RoundUp(Block)
}

// XFSDeviceSize returns the size of the logical volume that holds an XFS volume of this size: the data
// plus XFS's log, metadata and reserves, rounded up to extents. inodes is the limit on inodes, 0
// for none.
//
// Only XFSDeviceSize computes the overhead of XFS (and ext4DeviceSize that of ext4), both for the
// provisioner's charge and for the driver. It errs on the large side; after mkfs the driver checks
// that size really fits on the file system.
func XFSDeviceSize(size Bytes, inodes int64) Bytes {
	data := size.RoundUp(Block)
	forInodes := max(data/inodeShare, inodeRoom(inodes))
	total := data + LogSize(size) + fixedReserve + data/btreeShare + forInodes
	return max(total, minDevice).RoundUp(DefaultExtent)
}

// AllocationGroups returns how many allocation groups mkfs creates: four, its default on a plain
// disk, or as many as the device needs, because a group has at most 1 TiB.
func AllocationGroups(size Bytes, inodes int64) int {
	return max(4, int(XFSDeviceSize(size, inodes)/TiB)+1)
}

// inodeRoom returns the space that n inodes take, with a sixteenth for their trees and half-used
// chunks.
func inodeRoom(n int64) Bytes {
	b := Bytes(n) * inodeSize
	return b + b/16
}

// InodePercent returns the percentage of the file system that mkfs must allow for inodes so that
// the limit can be reached; 0 means mkfs's default.
func InodePercent(size Bytes, inodes int64) int {
	// mkfs.xfs's defaults (man 8 mkfs.xfs, maxpct): 25 % below 1 TiB, 5 % below
	// 50 TiB, 1 % above.
	device := XFSDeviceSize(size, inodes)
	def := 25
	switch {
	case device >= 50*TiB:
		def = 1
	case device >= TiB:
		def = 5
	}
	need := int(inodeRoom(inodes)*100/device) + 1
	if need <= def {
		return 0
	}
	return min(need, 100)
}
