package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/diskid"
)

// blkidNothing is blkid's exit code for "no signature" (man 8 blkid).
const blkidNothing = 2

// A content is what blkid finds on a device.
type content struct {
	known bool   // it finds a file system or a partition table, so kubelet does not format the device
	uuid  string // of the file system; empty if there is none, or it has none
}

// filesystem returns what the file system on the device is called where it is mounted; empty if there is none.
func (c content) filesystem() string {
	if c.uuid == "" {
		return ""
	}
	return diskid.OfFilesystem(c.uuid, "/")
}

// contentOf repeats the check with which the kubelet decides whether to format a device.
func contentOf(ctx context.Context, run exec.Interface, device string) (is content, err error) {
	out, err := run.CommandContext(ctx, "blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-s", "UUID", "-o", "export", "--", device).Output()
	var exit exec.ExitError
	if errors.As(err, &exit) && exit.ExitStatus() == blkidNothing {
		return is, nil
	}
	if err != nil {
		return is, fmt.Errorf("look for a file system on %s: %w", device, err)
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "TYPE", "PTTYPE":
			is.known = true
		case "UUID":
			is.uuid = value
		}
	}
	return is, nil
}

// checkKubeletFormat fails if the kubelet would format a device that may hold data: for volumeMode
// Filesystem it formats every device on which blkid finds nothing, and raw data has no signature. A
// device that flexlvm discarded last may read as anything between its ends.
func checkKubeletFormat(device string, is content, c Class, e Entry) error {
	if c.Block || is.known {
		return nil
	}
	blank := disk.CheckZeroSamples
	if e.discarded() {
		blank = disk.CheckZeroEnds
	}
	if err := blank(device); err != nil {
		return fmt.Errorf("kubelet would format it, because no file system was found on it: %w; or give its class volumeMode: Block", err)
	}
	return nil
}
