package doctor

import (
	"context"
	"fmt"
)

// checkScan checks whether LVM takes data that pods write to raw block volumes for the host's physical volumes.
func (d *Doctor) checkScan(ctx context.Context) []Finding {
	const check, setting = "logical volumes", "scan_lvs"
	value, err := d.setting(ctx, "devices/"+setting)
	switch {
	case err != nil: // LVM before 2.02.184 lacks the setting and always scans them
		return warn(check, err.Error(), "check the output of `lvmconfig`, or use LVM 2.02.184 or later")
	case value == "0":
		return ok(check, "LVM does not look for physical volumes on them")
	default:
		return warn(check, "LVM looks for physical volumes on them, also on raw block volumes, to which pods may write one",
			fmt.Sprintf("set %s = 0 in lvm.conf; if a group of yours is on a logical volume, use LVM's devices file (docs/block.md)", setting))
	}
}
