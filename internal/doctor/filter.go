package doctor

import (
	"context"
	"os"
	"strings"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/lvm"
)

// checkFilters checks whether flexlvm can hide from its LVM commands what pods write to raw block
// volumes. For that, flexlvm sets one of LVM's two filters, which the host must not have set.
func (d *Doctor) checkFilters(ctx context.Context) []Finding {
	const check = "LVM's filters"
	filter, err := d.setting(ctx, "devices/filter")
	if err != nil {
		return warn(check, err.Error(), "check the output of `lvmconfig`")
	}
	global, err := d.setting(ctx, "devices/global_filter")
	switch {
	case err != nil:
		return warn(check, err.Error(), "check the output of `lvmconfig`")
	case !lvm.FiltersSet(filter, global):
		return ok(check, "flexlvm can hide raw block volumes of pods from its LVM commands")
	case d.usesDevicesFile(ctx):
		return ok(check, "LVM uses its devices file instead")
	case strings.Contains(filter+global, dm.BlockName("")):
		return ok(check, "the host has set both, and they name the devices of raw block volumes")
	}
	return warn(check, "the host has set devices/filter and devices/global_filter, so flexlvm cannot hide from LVM what pods write to raw block volumes",
		`put "r|^/dev/loop|" and "r|^/dev/mapper/`+dm.BlockName("")+`|" first in global_filter, unless physical volumes are loop devices (docs/block.md)`)
}

// usesDevicesFile reports whether LVM uses its devices file instead of its filters.
func (d *Doctor) usesDevicesFile(ctx context.Context) bool {
	if _, err := os.Stat(d.path(devicesFileName)); err != nil {
		return false
	}
	uses, err := d.setting(ctx, "devices/use_devicesfile")
	return err == nil && uses == "1"
}
