package doctor

import (
	"context"
	"fmt"
	"strconv"
)

// checkSnapshots checks whether LVM extends copy-on-write snapshots by itself, with room that may be promised
// to claims.
func (d *Doctor) checkSnapshots(ctx context.Context) []Finding {
	const check, setting = "snapshots", "snapshot_autoextend_threshold"
	value, err := d.setting(ctx, "activation/"+setting)
	if err != nil {
		return warn(check, err.Error(), "check the output of `lvmconfig`")
	}
	percent, err := strconv.Atoi(value)
	if err != nil {
		return warn(check, fmt.Sprintf("LVM's %s is %q", setting, value), "check the output of `lvmconfig`")
	}
	if percent < 100 {
		return warn(check, fmt.Sprintf("LVM extends copy-on-write snapshots from %d %% on, with room that may be promised to claims", percent), fmt.Sprintf("set %s = 100 in lvm.conf, and `reserve` in the VolumeSnapshotClass", setting))
	}
	return ok(check, "copy-on-write ones keep the size that was set aside for them")
}
