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
		return fail(check, err.Error(), "look at what `lvs` says")
	}
	var all []Finding
	for _, v := range list {
		all = append(all, judgeVolume(v)...)
	}
	if len(all) == 0 {
		return ok(check, fmt.Sprintf("%d, none half made", len(list)))
	}
	return all
}

// judgeVolume returns a finding for a volume that needs attention. It is a pure function.
func judgeVolume(v inventory.Volume) []Finding {
	check, otherwise := fmt.Sprintf("volume %s/%s", v.Group, v.Name), "else remove it with lvremove"
	if v.Layout == volume.Directory { // not a logical volume
		otherwise = fmt.Sprintf("else see `flexlvm volumes forget %s`", v.Name)
	}
	switch {
	case v.State == volume.Doomed:
		return warn(check, "its removal has begun and not come to its end", "nothing where the node daemon runs, which finishes it; "+otherwise)
	case v.State == volume.Creating && !v.Open:
		return warn(check, "half made: whoever made it was cut short", "nothing where its pod still waits: the next mount finishes it; "+otherwise)
	case v.State == "":
		return fail(check, v.Problem, fmt.Sprintf("see `flexlvm volumes show %s`; no pod can mount it like this", v.Name))
	case v.Problem != "":
		return warn(check, v.Problem, fmt.Sprintf("see `flexlvm volumes show %s`", v.Name))
	}
	return nil
}
