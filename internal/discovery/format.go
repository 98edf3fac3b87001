package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/disk"
)

// blkidNothing is blkid's exit code for "no signature" (man 8 blkid).
const blkidNothing = 2

// checkKubeletFormat fails if the kubelet would format a device that may hold data: for volumeMode
// Filesystem it formats every device on which blkid finds nothing, and raw data has no signature. A
// device that flexlvm discarded last may read as anything between its ends.
func checkKubeletFormat(ctx context.Context, run exec.Interface, device string, c Class, e Entry) error {
	if c.Block {
		return nil
	}
	formats, err := kubeletFormats(ctx, run, device)
	if err != nil || !formats {
		return err
	}
	blank := disk.ReadsZero
	if e.discarded() {
		blank = disk.EndsReadZero
	}
	if err := blank(device); err != nil {
		return fmt.Errorf("kubelet would format it, because no file system was found on it: %w; or give its class volumeMode: Block", err)
	}
	return nil
}

// kubeletFormats repeats the check with which the kubelet decides whether to format a device.
func kubeletFormats(ctx context.Context, run exec.Interface, device string) (bool, error) {
	out, err := run.CommandContext(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", device).Output()
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.ExitStatus() == blkidNothing {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for a file system on %s: %w", device, err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "TYPE=") || strings.HasPrefix(line, "PTTYPE=") {
			return false, nil
		}
	}
	return true, nil
}
