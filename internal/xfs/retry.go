package xfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// metadataRetries is how often XFS retries a metadata write before it gives the file system up.
const metadataRetries = 5

// BoundRetries makes XFS give up on a file system whose device accepts no more metadata,
// as in a full thin pool. By default XFS retries forever, and processes waiting for it
// cannot be killed. The setting lasts as long as the file system is mounted anywhere, so
// call this after every mount. device is its number, as in stat's st_rdev. See Linux'
// Documentation/admin-guide/xfs.rst, on error handling.
func BoundRetries(device uint64) error { return boundRetries("/sys", device) }

func boundRetries(sys string, device uint64) error {
	link := fmt.Sprintf("%s/dev/block/%d:%d", sys, unix.Major(device), unix.Minor(device))
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return fmt.Errorf("bound the retries of XFS: %w", err)
	}
	var all error
	for _, kind := range []string{"ENOSPC", "EIO", "default"} {
		file := filepath.Join(sys, "fs/xfs", filepath.Base(dir), "error/metadata", kind, "max_retries")
		if err := os.WriteFile(file, []byte(strconv.Itoa(metadataRetries)), 0); err != nil {
			all = errors.Join(all, fmt.Errorf("bound the retries of XFS: %w", err))
		}
	}
	return all
}
