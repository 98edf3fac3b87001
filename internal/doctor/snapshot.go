package doctor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// checkSnapshots looks at whether LVM extends copy-on-write snapshots by itself: the room for that
// may be promised to claims.
func (d *Doctor) checkSnapshots(ctx context.Context) []Finding {
	const check, setting = "snapshots", "snapshot_autoextend_threshold"
	out, err := d.host.Tools.CommandContext(ctx, "lvmconfig", "--type", "full", "activation/"+setting).Output()
	if err != nil {
		return warn(check, err.Error(), "look at what `lvmconfig` says")
	}
	text := strings.TrimSpace(string(out))
	percent, err := strconv.Atoi(strings.TrimPrefix(text, setting+"="))
	if err != nil {
		return warn(check, fmt.Sprintf("LVM's %s reads %q", setting, text), "look at what `lvmconfig` says")
	}
	if percent < 100 {
		return warn(check, fmt.Sprintf("LVM extends copy-on-write snapshots from %d %% on, with room that may be promised to claims", percent), fmt.Sprintf("set %s = 100 in lvm.conf, and `reserve` in the VolumeSnapshotClass", setting))
	}
	return ok(check, "copy-on-write ones keep the size that was set aside for them")
}
