package xfs

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/command"
)

// SetUUID gives the file system on device, which is not mounted and whose log is
// clean, another UUID, and writes its log anew under it. The caller answers for what
// the device holds being a copy that can be taken again: killed at any instant this
// may leave a log that neither is whole nor says so.
//
// It is what xfs_admin(8) does, without the shell script that this is. The program
// exits 0 whatever comes of it, so the caller reads the superblock afterwards.
func SetUUID(ctx context.Context, run command.Runner, device, uuid string) error {
	_, err := run.Run(ctx, command.Command{Name: "xfs_db", Args: setUUIDArgs(device, uuid), Disposable: true})
	if err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}

func setUUIDArgs(device, uuid string) []string {
	return []string{"-x", "-p", "xfs_admin", "-c", "uuid " + uuid, device}
}
