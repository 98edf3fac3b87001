package xfs

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// SetUUID gives the file system on device, which is not mounted and whose log is
// clean, another UUID, and writes its log anew under it. The caller answers for what
// the device holds being a copy that can be taken again: killed at any instant this
// may leave a log that neither is whole nor says so.
//
// It is what xfs_admin(8) does, without the shell script that this is. The program
// exits 0 whatever comes of it, so the caller reads the superblock afterwards.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	if err := run.CommandContext(ctx, "xfs_db", setUUIDArgs(device, uuid)...).Run(); err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}

func setUUIDArgs(device, uuid string) []string {
	return []string{"-x", "-p", "xfs_admin", "-c", "uuid " + uuid, device}
}
