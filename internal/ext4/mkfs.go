package ext4

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Format is what mke2fs is given.
type Format struct {
	Device string
	UUID   string
	Size   volume.Bytes // what the user may write
}

// Mkfs makes the file system. The caller must be sure that the volume is in state
// creating: whatever the device holds is lost. mke2fs opens the device exclusively, so
// it fails if the device is mounted or the mke2fs of a killed call still works on it.
//
// Killed at any instant it leaves a superblock that ReadSuperblock refuses, or a
// whole file system, so run may kill it.
func Mkfs(ctx context.Context, run exec.Interface, f Format) error {
	if err := run.CommandContext(ctx, "mke2fs", mkfsArgs(f)...).Run(); err != nil {
		return fmt.Errorf("format %s: %w", f.Device, err)
	}
	return nil
}

// features are all that the file system has, of those that the oldest kernel and the oldest
// e2fsprogs know. metadata_csum_seed lets a copy have another UUID without all its metadata
// being written anew.
var features = strings.Join([]string{
	"none", "has_journal", "ext_attr", "resize_inode", "dir_index", "filetype", "extent", "64bit", "flex_bg", "sparse_super",
	"large_file", "huge_file", "dir_nlink", "extra_isize", "metadata_csum", "metadata_csum_seed", "quota", "project",
}, ",")

// mkfsArgs fixes everything that the arithmetic of volume.Spec.DeviceSize depends on, so
// that neither another release of e2fsprogs nor the host's mke2fs.conf changes it.
func mkfsArgs(f Format) []string {
	return []string{
		// Old content is no reason to stop. A device that is mounted still is: that
		// would take this twice.
		"-F", "-q",
		"-t", "ext4",
		"-U", f.UUID,
		"-b", strconv.FormatInt(int64(volume.Block), 10),
		"-I", strconv.Itoa(inodeSize),
		"-i", strconv.FormatInt(int64(volume.Ext4InodeRatio), 10),
		"-G", "16",
		"-m", "0", // nothing is kept for root: the quota of a project knows no such thing
		"-e", "remount-ro",
		"-J", "size=" + strconv.FormatInt(int64(volume.Ext4JournalSize(f.Size)/volume.MiB), 10),
		"-O", features,
		// Trimming the whole device first would make the first mount slow. The kernel
		// zeroes the tables of inodes in use by itself; a journal that is not zeroed
		// could be taken for one that holds something.
		"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=0,quotatype=prjquota",
		f.Device,
	}
}
