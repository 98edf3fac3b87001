package doctor

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func (d *Doctor) checkVolumes(ctx context.Context) []Finding {
	const check = "volumes"
	list, err := d.host.Inventory.List(ctx)
	if err != nil {
		return fail(check, err.Error(), "check the output of `lvs`")
	}
	var all []Finding
	for _, v := range list {
		all = append(all, judgeVolume(v)...)
	}
	if len(all) == 0 {
		return ok(check, fmt.Sprintf("%d, none unfinished", len(list)))
	}
	return all
}

// judgeVolume returns a finding for a volume that needs attention. It is a pure function.
func judgeVolume(v inventory.Volume) []Finding {
	check := fmt.Sprintf("volume %s/%s", v.Group, v.Name)
	switch {
	case v.State == volume.Doomed:
		return warn(check, "its removal has begun and is not finished", "nothing: the node daemon finishes it, and first wipes the volume if its class says so")
	case v.State == volume.Creating && !v.Open:
		// The tags may be all that is missing: a pod may have written to it (see node.Engine.isRecorded).
		return warn(check, "in state creating: its first mount was interrupted, perhaps only its last step, so it may hold data",
			fmt.Sprintf("nothing: the next mount or the node daemon finishes it. If nobody needs it: `flexlvm volumes forget %s`", v.Name))
	case v.State == "":
		return fail(check, v.Problem, fmt.Sprintf("see `flexlvm volumes show %s`; no pod can mount it like this", v.Name))
	case v.Problem != "":
		return warn(check, v.Problem, fmt.Sprintf("see `flexlvm volumes show %s`", v.Name))
	}
	return nil
}
