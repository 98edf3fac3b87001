package xfs

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Format holds the parameters of mkfs.
type Format struct {
	Device string
	UUID   string
	Size   volume.Bytes // what the user may write
	Inodes int64        // limit on inodes, 0 for none
	// AnyInodes lets inodes take all of the file system.
	AnyInodes bool
}

// Mkfs creates the file system. The caller must be sure that the volume is in state creating: the
// content of the device is lost. mkfs.xfs opens the device exclusively, so it fails if the device
// is mounted or the mkfs of a killed call still works on it.
//
// Killed at any instant, it leaves a superblock that ReadSuperblock rejects, or a complete file
// system, so run may kill it.
func Mkfs(ctx context.Context, run exec.Interface, f Format) error {
	if err := run.CommandContext(ctx, "mkfs.xfs", mkfsArgs(f)...).Run(); err != nil {
		return fmt.Errorf("format %s: %w", f.Device, err)
	}
	return nil
}

// mkfsArgs fixes everything that the arithmetic of volume.XFSDeviceSize depends on,
// so that another release of xfsprogs with other defaults cannot change it.
func mkfsArgs(f Format) []string {
	inodes := "size=512"
	if f.AnyInodes {
		inodes += ",maxpct=0"
	} else if pct := volume.InodePercent(f.Size, f.Inodes); pct > 0 {
		inodes += ",maxpct=" + strconv.Itoa(pct)
	}
	return []string{
		// An old signature on recycled extents is no reason to stop, and trimming
		// the whole device first would make the first mount slow.
		"-f", "-K", "-q",
		"-m", "crc=1,finobt=1,rmapbt=0,reflink=1,uuid=" + f.UUID,
		"-d", "agcount=" + strconv.Itoa(volume.AllocationGroups(f.Size, f.Inodes)),
		"-b", "size=" + strconv.FormatInt(int64(volume.Block), 10),
		"-i", inodes,
		"-l", "internal=1,size=" + strconv.FormatInt(int64(volume.LogSize(f.Size)), 10),
		f.Device,
	}
}
