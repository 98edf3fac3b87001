package xfs

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// SetUUID changes the UUID of the file system on device, which must be unmounted with a clean log,
// and rewrites its log under the new one. The caller must be sure that the device holds a copy that
// can be created again: killed at any instant, SetUUID may leave a broken log that is not marked as
// such.
//
// It does what xfs_admin(8), a shell script, does. xfs_db exits with 0 even if it fails,
// so the caller must read the superblock afterwards.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	if err := run.CommandContext(ctx, "xfs_db", setUUIDArgs(device, uuid)...).Run(); err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}

func setUUIDArgs(device, uuid string) []string {
	return []string{"-x", "-p", "xfs_admin", "-c", "uuid " + uuid, device}
}
