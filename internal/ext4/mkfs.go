package ext4

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Format holds the parameters of mke2fs.
type Format struct {
	Device string
	UUID   string
	Size   volume.Bytes // what the user may write
}

// Mkfs creates the file system. The caller must be sure that the volume is in state creating: the
// content of the device is lost. mke2fs opens the device exclusively, so it fails if the device is
// mounted or the mke2fs of a killed call still works on it.
//
// Killed at any instant, it leaves a superblock that ReadSuperblock rejects, or a complete file
// system, so run may kill it.
func Mkfs(ctx context.Context, run exec.Interface, f Format) error {
	if err := run.CommandContext(ctx, "mke2fs", mkfsArgs(f)...).Run(); err != nil {
		return fmt.Errorf("format %s: %w", f.Device, err)
	}
	return nil
}

// features are all features of the file system, limited to those that the oldest kernel and the
// oldest e2fsprogs know. metadata_csum_seed lets a copy get another UUID without a rewrite of all
// its metadata.
var features = strings.Join([]string{
	"none", "has_journal", "ext_attr", "resize_inode", "dir_index", "filetype", "extent", "64bit", "flex_bg", "sparse_super",
	"large_file", "huge_file", "dir_nlink", "extra_isize", "metadata_csum", "metadata_csum_seed", "quota", "project",
}, ",")

// mkfsArgs fixes everything that the arithmetic of volume.Spec.DeviceSize depends on, so
// that neither another release of e2fsprogs nor the host's mke2fs.conf changes it.
func mkfsArgs(f Format) []string {
	return []string{
		// Old content is no reason to stop. A mounted device still is: it would take -F twice.
		"-F", "-q",
		"-t", "ext4",
		"-U", f.UUID,
		"-b", strconv.FormatInt(int64(volume.Block), 10),
		"-I", strconv.Itoa(inodeSize),
		"-i", strconv.FormatInt(int64(volume.Ext4InodeRatio), 10),
		"-G", "16",
		"-m", "0", // nothing is reserved for root: a project quota knows no such reserve
		"-e", "remount-ro",
		"-J", "size=" + strconv.FormatInt(int64(volume.Ext4JournalSize(f.Size)/volume.MiB), 10),
		"-O", features,
		// Trimming the whole device first would make the first mount slow. The kernel zeroes the
		// inode tables itself, while the file system is in use; a journal that is not zeroed could
		// be mistaken for one with content.
		"-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=0,quotatype=prjquota",
		f.Device,
	}
}
