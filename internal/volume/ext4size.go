package volume

const (
	// Ext4InodeRatio is the number of bytes of the device per inode. ext4 creates all inodes at
	// mkfs or when it grows. The ratio is mke2fs's default.
	Ext4InodeRatio = 16 * KiB
	// minExt4Device has two whole block groups, the second of which holds a copy of the
	// superblock.
	minExt4Device = 2 * Ext4Group

	// Ext4Group is the size of a block group: the blocks that a bitmap of one block covers.
	Ext4Group = 128 * MiB

	ext4InodeSize = 256
	// ext4GroupReserve is what a block group sets aside: its inode table, rounded up to a
	// block, and two bitmaps.
	ext4GroupReserve = Ext4Group/Ext4InodeRatio*ext4InodeSize + 3*Block
	// ext4Descriptors is the number of group descriptors in a block.
	ext4Descriptors = 64
	// ext4Reserved is the most space reserved for further descriptors, into which the file system
	// can grow (calc_reserved_gdt_blocks in e2fsprogs).
	ext4Reserved = 1024 * Block
	// ext4Fixed covers what the kernel reserves so that it can write what it has accepted (at most
	// 4096 blocks = 16 MiB, ext4_calculate_resv_clusters), the quota, lost+found, and block maps
	// that are written after their data was counted.
	ext4Fixed = 24 * MiB
)

// ext4Inodes returns the fewest inodes that an ext4 volume of this size has.
func ext4Inodes(size Bytes) int64 { return int64(size / Ext4InodeRatio) }

// Ext4JournalSize returns the size of the journal for a volume of this size, in whole MiB, as
// mke2fs requires. Like LogSize, it does not depend on mke2fs's defaults.
func Ext4JournalSize(size Bytes) Bytes { return LogSize(size).RoundUp(MiB) }

// ext4DeviceSize is XFSDeviceSize for ext4. The file system's overhead depends on the size of the
// device, so it returns the smallest device on which data and overhead fit.
func ext4DeviceSize(size Bytes) Bytes {
	data, device := size.RoundUp(Block)+Ext4JournalSize(size)+ext4Fixed, minExt4Device
	for {
		need := (data + ext4Overhead(device)).RoundUp(DefaultExtent)
		if need <= device {
			return device
		}
		device = need
	}
}

// ext4Overhead returns the overhead of the block groups of a device.
func ext4Overhead(device Bytes) Bytes {
	groups := (device + Ext4Group - 1) / Ext4Group
	descriptors := (groups + ext4Descriptors - 1) / ext4Descriptors * Block
	return groups*ext4GroupReserve + Bytes(len(Ext4Copies(device))+1)*(Block+descriptors+ext4Reserved)
}

// Ext4Copies returns the offsets of the copies of ext4's superblock on a device of this size: at
// the beginning of the groups whose number is 1, or a power of 3, 5 or 7 (sparse_super in Linux'
// Documentation/filesystems/ext4).
func Ext4Copies(device Bytes) []Bytes {
	groups := (device + Ext4Group - 1) / Ext4Group
	var all []Bytes
	if groups > 1 {
		all = append(all, Ext4Group)
	}
	for _, base := range []Bytes{3, 5, 7} {
		for n := base; n < groups; n *= base {
			all = append(all, n*Ext4Group)
		}
	}
	return all
}
