package node

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// copiedGroups returns the groups of the volumes and directory pools that exist in several groups, by their UUIDs: vgimportclone
// gives a copied group another UUID, but its volumes keep their UUIDs, names and tags.
func copiedGroups(lvs []lvm.LogicalVolume) map[string][]volume.Group {
	first, copied := map[string]int{}, map[string][]volume.Group{}
	for i := range lvs {
		id, group := lvs[i].UUID, lvs[i].Group
		switch at, there := first[id]; {
		case !there:
			first[id] = i
		case lvs[at].GroupUUID == lvs[i].GroupUUID:
		case copied[id] == nil:
			copied[id] = []volume.Group{lvs[at].Group, group}
		default:
			copied[id] = append(copied[id], group)
		}
	}
	for _, groups := range copied {
		slices.Sort(groups)
	}
	return copied
}

// explainCopiedGroups adds to the description of a volume that it exists in several groups. As long as it has a
// problem, it is not evicted.
func explainCopiedGroups(v *inventory.Volume, groups []volume.Group) {
	if groups == nil {
		return
	}
	v.Problem, v.Copied = withCopiedGroups(v.Problem, groups), v.Problem == ""
}

// explainCopiedGroups adds to the descriptions of a directory pool's volumes that the pool exists in several groups, and
// to that of a pool that takes no volumes, which may be the reason: the kernel mounts only one of the file systems.
func (o *observedPool) explainCopiedGroups(groups []volume.Group) {
	if groups == nil {
		return
	}
	for i := range o.volumes {
		explainCopiedGroups(&o.volumes[i], groups)
	}
	if unfit := &o.pool.Directories.Unfit; *unfit != "" {
		*unfit = withCopiedGroups(*unfit, groups)
	}
}

// withCopiedGroups adds to a problem, which may be empty, that these groups are copies of each other.
func withCopiedGroups(problem string, groups []volume.Group) string {
	names := make([]string, 0, len(groups))
	for _, g := range groups {
		names = append(names, string(g))
	}
	which := "one is a copy of the other"
	if len(groups) > 2 {
		which = "all but one are copies"
	}
	copied := fmt.Sprintf("the volume groups %s each hold a volume with its UUID, so %s (vgimportclone): take flexlvm's tag off the volumes of the copy (`lvchange --deltag %s COPY`), or detach its disks: see docs/backup.md#copies-of-a-nodes-disks", strings.Join(names, ", "), which, volume.TagOwned)
	if problem == "" {
		return copied
	}
	return problem + "; " + copied
}
