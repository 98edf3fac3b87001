package lvm

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Doom changes the state of volumes of one group to doomed, in one command, and makes that durable
// (Flush). LVM itself selects those that are unreferenced, have the UUIDs of lvs and no snapshots;
// it leaves the others unchanged, without an error. It is idempotent.
func (c *Client) Doom(ctx context.Context, g volume.Group, lvs []LogicalVolume) error {
	if _, err := c.lvm(ctx, "lvchange", doomArgs(g, lvs)...); err != nil {
		return fmt.Errorf("tag logical volumes of %s: %w", g, err)
	}
	return c.Flush(ctx, g, lvs[0].Name)
}

// RemoveDoomed removes volumes of one group in one command: LVM itself selects those that are
// doomed, have the UUIDs of lvs and no snapshots. If one of them cannot be removed, for example
// because its device is open, LVM 2.03.16 removes none; other versions may remove some. Left
// returns those that remain.
func (c *Client) RemoveDoomed(ctx context.Context, g volume.Group, lvs []LogicalVolume) error {
	if _, err := c.lvm(ctx, "lvremove", removeDoomedArgs(g, lvs)...); err != nil {
		return fmt.Errorf("remove logical volumes of %s: %w", g, err)
	}
	return nil
}

// Left returns those of lvs that LVM still shows in their groups, by their UUIDs: under any name,
// with or without flexlvm's tags. The others are gone: LVM shows their groups without them and with
// all devices. If it does not, Left fails. Volumes of another group do not count, because a copy of
// a group (vgimportclone) has volumes with the same UUIDs.
func (c *Client) Left(ctx context.Context, lvs []LogicalVolume) ([]LogicalVolume, error) {
	out, err := c.lvm(ctx, "lvm", fullReportArgs(anyOf(lvs))...)
	if err != nil {
		return nil, fmt.Errorf("look which logical volumes are left: %w", err)
	}
	groups, err := parseGroups(out)
	if err != nil {
		return nil, err
	}
	for _, lv := range lvs {
		at := slices.IndexFunc(groups, func(g VolumeGroup) bool { return g.UUID == lv.GroupUUID })
		switch {
		case at < 0:
			return nil, fmt.Errorf("look which logical volumes are left: %w: %s with UUID %s", ErrNoGroup, lv.Group, lv.GroupUUID)
		case groups[at].Missing > 0:
			return nil, partialErr(groups[at], lv.Name)
		}
	}
	all, err := parseVolumes(out)
	return slices.DeleteFunc(all, func(there LogicalVolume) bool {
		return !slices.ContainsFunc(lvs, func(lv LogicalVolume) bool { return lv.UUID == there.UUID && lv.GroupUUID == there.GroupUUID })
	}), err
}

func doomArgs(g volume.Group, lvs []LogicalVolume) []string {
	from, to := volume.Unreferenced.Tag(), volume.Doomed.Tag()
	return []string{"--config", noArchive, "--deltag", from, "--addtag", to, "--select", removableSelection(anyOf(lvs), from), "--", string(g)}
}

func removeDoomedArgs(g volume.Group, lvs []LogicalVolume) []string {
	return []string{"--yes", "--select", removableSelection(anyOf(lvs), volume.Doomed.Tag()), "--", string(g)}
}

// removableSelection narrows a selection to flexlvm's volumes that have tag and no snapshots.
func removableSelection(which, tag string) string {
	return which + fmt.Sprintf(` && %s && lv_tags={"%s"} && %s`, oursSelection, tag, noOriginSelection)
}

// anyOf selects volumes by their UUIDs.
func anyOf(lvs []LogicalVolume) string {
	var each []string
	for _, lv := range lvs {
		each = append(each, fmt.Sprintf(`lv_uuid="%s"`, lv.UUID))
	}
	return "(" + strings.Join(each, " || ") + ")"
}
