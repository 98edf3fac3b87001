package ext4

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// SetUUID changes the UUID of the file system on device, which must be unmounted with an empty
// journal. The file system need not be checked before: the checksums of its metadata have their own
// seed (metadata_csum_seed), so tune2fs writes only superblocks and group descriptors. Mkfs sets
// that feature; a file system that a person has created may lack it, and gets it first. The caller
// must be sure that the device holds a copy that can be created again: killed at any instant,
// SetUUID may leave a half-written superblock.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	// tune2fs prints some of its errors on its standard output.
	if _, err := run.CommandContext(ctx, "tune2fs", "-O", "metadata_csum_seed", "-U", uuid, device).CombinedOutput(); err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}
