package ext4

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// SetUUID changes the UUID of the file system on device, which must be unmounted with an
// empty journal. No check of the file system has to come before: the checksums of its
// metadata begin with a seed of their own (metadata_csum_seed), so tune2fs writes superblocks
// and descriptors of groups alone. The caller must be sure that the device holds a copy that
// can be made again: killed at any instant, this may leave a superblock that is half-written.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	if err := run.CommandContext(ctx, "tune2fs", "-U", uuid, device).Run(); err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}
