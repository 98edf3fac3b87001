package doctor

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// highThin is the usage of a thin pool's data or metadata, in percent, from which there is a warning. From the
// same usage on, the node daemon by default promises no more volumes in the pool.
const highThin = 80

// checkThinPools checks every flexlvm thin pool. Having none is not a finding.
func (d *Doctor) checkThinPools(ctx context.Context) []Finding {
	pools, err := d.host.Inventory.ThinPools(ctx)
	if err != nil {
		return fail("thin pools", err.Error(), "check the output of `lvs`")
	}
	if len(pools) == 0 {
		return nil
	}
	all := d.checkThinCheck(ctx)
	for _, p := range pools {
		all = append(all, judgeThinPool(p)...)
	}
	return all
}

// checkThinCheck checks for the program with which LVM checks a thin pool before it activates it. Without it,
// LVM prints a warning each time and activates the pool.
func (d *Doctor) checkThinCheck(ctx context.Context) []Finding {
	const check = "thin_check"
	if err := d.host.Tools.CommandContext(ctx, check, "-V").Run(); err != nil {
		return warn(check, fmt.Sprintf("%s; it is of the package thin-provisioning-tools (device-mapper-persistent-data on RHEL)", err), "install it: without it, LVM activates a thin pool whose metadata is damaged, and cannot repair it")
	}
	return ok(check, "LVM can check and repair thin pools")
}

// judgeThinPool is a pure function.
func judgeThinPool(p lvm.ThinPool) []Finding {
	check := "thin pool " + p.Path()
	if why := p.Unfit(); why != "" {
		return fail(check, why, "do as it says; until then no volume is promised in it")
	}
	data, metadata := volume.Percent(p.Used, p.Size), volume.Percent(p.MetadataUsed, p.Metadata)
	switch {
	case metadata >= highThin:
		return warn(check, fmt.Sprintf("its metadata is %d %% full; once it is full the pool must be repaired by hand", metadata),
			fmt.Sprintf("run `lvextend --poolmetadatasize +64M %s`; if group %s has less than 128 MiB free, first add a device with `vgextend --metadatasize 16m %s DEVICE`; or delete claims and VolumeSnapshots in the pool that nobody needs (never logical volumes by hand)", p.Path(), p.Group, p.Group))
	case data >= highThin:
		return warn(check, fmt.Sprintf("%d %% full; when it is full, writing to its volumes fails", data), fmt.Sprintf("run `lvextend --size +SIZE %s`, or delete claims that nobody needs (never logical volumes by hand)", p.Path()))
	}
	return ok(check, fmt.Sprintf("%s, %s free, metadata %d %% full, %s", p.Size, p.Size-p.Used, metadata, volume.Pluralize(p.Volumes, "volume", "volumes")))
}
