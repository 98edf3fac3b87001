package discovery

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
)

// checkSameDevice fails unless the device that was found still has its ID and is the same partition, and no other disk
// has the same ID: a link in /dev/disk/by-id could lead to either.
func (h host) checkSameDevice(f Found) error {
	d, err := h.Device(f.Number)
	if err != nil {
		return err
	}
	if d.ID != f.Disk {
		return fmt.Errorf("device %s is now in the place of %s, which was found here", d.ID, f.Disk)
	}
	if start := int64(d.Start); start != f.Start {
		return fmt.Errorf("partition %s begins at byte %d of its disk, and began at byte %d when it was found", d.ID, start, f.Start)
	}
	return checkUniqueID(d.ID, h.Disks)
}

// checkUniqueID fails if several disks report this ID, or the ID of the disk that the partition with
// this ID is on.
func checkUniqueID(id string, listDisks func() ([]disk.Disk, error)) error {
	all, err := listDisks()
	if err != nil {
		return fmt.Errorf("cannot determine whether another disk has the same ID: %w", err)
	}
	var devices []string
	shared := ""
	for _, d := range all {
		if d.ID != "" && (d.ID == id || diskid.PartitionOf(id, d.ID)) {
			devices, shared = append(devices, d.Path), d.ID
		}
	}
	if len(devices) < 2 {
		return nil
	}
	return fmt.Errorf("%s report the same ID, %s: they are paths to one disk (multipath), or copies with the same serial number; combine the paths with multipathd, unplug all but one, or give each disk its own serial number", strings.Join(devices, " and "), shared)
}

// CheckNew fails if no PersistentVolume may be created for f, although one that exists stays as it is. If disks of other
// machines are known to have the same ID, another one could take this one's place, and its PersistentVolume would seem to
// have the disks of all other nodes.
func (f *Found) CheckNew() error {
	switch {
	case f.AliasesUnknown != nil:
		return fmt.Errorf("cannot determine all disks that it is on; replace the missing one, or remove it from the volume group or RAID: %w", f.AliasesUnknown)
	case f.Kind == Device && diskid.Common(f.Disk):
		return fmt.Errorf("disks of other machines have the same ID, %s; make a file system on it and mount that here, or give the disk a serial number of its own", f.Disk)
	case f.Kind == Device && diskid.IsMappedPartition(f.Disk):
		return errors.New("it is a partition that kpartx has mapped, such as one of a multipath disk, and a change of the partition table would not be noticed; make a file system on it and mount that here, or use a logical volume")
	case f.Kind == Directory && !f.Mounted && path.Base(f.Path) == lostAndFound:
		return errors.New("it belongs to the file system that it is in: a repair of that puts files there, of any volume in it")
	}
	return nil
}

// inPlaceOf reports whether f is another disk than was, and has its ID, which is only a name.
func (f *Found) inPlaceOf(was diskid.Names) bool {
	return f.AliasesUnknown == nil && was.Exchanged(f.Names())
}

// aliasesOf returns those of the IDs that distinguish a disk from those of other machines.
func aliasesOf(ids []string) (out []string) {
	for _, id := range ids {
		if id != "" && !diskid.Common(id) {
			out = append(out, id)
		}
	}
	return out
}

// A dirID identifies a directory to the kernel. A later mount there, or a new directory of the same
// name, has another ID.
type dirID struct{ mount, inode uint64 }

// statxMountUnique requests a mount ID that the kernel never uses again (Linux 6.8).
const statxMountUnique = 0x4000

// dirIDOf returns the ID of an open directory or, with a path, of what is there.
func dirIDOf(fd int, path string) (dirID, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_MNT_ID|statxMountUnique, &st); err != nil {
		return dirID{}, fmt.Errorf("get its mount: %w", err)
	}
	if st.Mask&(unix.STATX_MNT_ID|statxMountUnique) == 0 {
		return dirID{}, errors.New("the kernel does not report the mount ID; Linux 5.8 is required")
	}
	return dirID{mount: st.Mnt_id, inode: st.Ino}, nil
}
