package ext4

import (
	"context"
	"fmt"

	"k8s.io/utils/exec"
)

// SetUUID changes the UUID of the file system on device, which must be unmounted with an
// empty journal. No check of the file system has to come before: the checksums of its
// metadata begin with a seed of their own (metadata_csum_seed), so tune2fs writes superblocks
// and descriptors of groups alone. Mkfs sets that feature; one that a person has made may lack
// it, and gets it first. The caller must be sure that the device holds a copy that
// can be made again: killed at any instant, this may leave a superblock that is half-written.
func SetUUID(ctx context.Context, run exec.Interface, device, uuid string) error {
	// tune2fs prints some of its reasons on its standard output.
	if _, err := run.CommandContext(ctx, "tune2fs", "-O", "metadata_csum_seed", "-U", uuid, device).CombinedOutput(); err != nil {
		return fmt.Errorf("give the file system on %s a UUID: %w", device, err)
	}
	return nil
}
