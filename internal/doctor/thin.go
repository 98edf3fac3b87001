package doctor

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// highThin is how full a thin pool's data or metadata may be, in percent, before an
// operator is told: where the node daemon promises no more in it by default.
const highThin = 80

// checkThinPools looks at every flexlvm thin pool. None is no finding.
func (d *Doctor) checkThinPools(ctx context.Context) []Finding {
	pools, err := d.host.Inventory.ThinPools(ctx)
	if err != nil {
		return fail("thin pools", err.Error(), "look at what `lvs` says")
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

// checkThinCheck looks for the program by which LVM checks a thin pool before it
// activates it. LVM does without, and says so each time.
func (d *Doctor) checkThinCheck(ctx context.Context) []Finding {
	const check = "thin_check"
	if err := d.host.Tools.CommandContext(ctx, check, "-V").Run(); err != nil {
		return warn(check, fmt.Sprintf("%s; it is of the package thin-provisioning-tools (device-mapper-persistent-data on RHEL)", err), "install it: without it, LVM activates a thin pool whose metadata is damaged, and cannot repair it")
	}
	return ok(check, "LVM can check and repair thin pools")
}

// judgeThinPool is pure.
func judgeThinPool(p lvm.ThinPool) []Finding {
	check := "thin pool " + p.Path()
	if why := p.Unfit(); why != "" {
		return fail(check, why, "do as it says; until then no volume is promised in it")
	}
	data, metadata := percent(p.Used, p.Size), percent(p.MetadataUsed, p.Metadata)
	switch {
	case metadata >= highThin:
		return warn(check, fmt.Sprintf("its metadata is %d %% full; once it is full the pool must be repaired by hand", metadata), fmt.Sprintf("run `lvextend --poolmetadatasize +64M %s`, or remove volumes", p.Path()))
	case data >= highThin:
		return warn(check, fmt.Sprintf("%d %% full; when it is full, writing to its volumes fails", data), fmt.Sprintf("run `lvextend --size +SIZE %s`, or remove volumes", p.Path()))
	}
	return ok(check, fmt.Sprintf("%s, %s free, metadata %d %% full, %s", p.Size, p.Size-p.Used, metadata, volume.Pluralize(p.Volumes, "volume", "volumes")))
}
