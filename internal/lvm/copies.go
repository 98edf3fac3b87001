package lvm

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Copy is one copy of the data of a raid1 volume.
type Copy struct {
	Name    string // of the hidden volume that holds the copy, such as data_rimage_0
	UUID    string // of that hidden volume; a repair replaces it by one with another UUID
	Missing bool   // a device that the copy is on is missing, or was removed from the group
	Removed bool   // a device that the copy was on was removed from the group: the copy is no longer part of the volume
	Failed  bool   // the volume is active, and the kernel does not use this copy
}

// Copies are the copies of raid1 volumes, by the volumes' paths.
type Copies map[string][]Copy

// Of returns the copies of a volume. It fails if LVM reported fewer copies than the volume has.
func (c Copies) Of(lv LogicalVolume) ([]Copy, error) {
	all := c[lv.path()]
	if len(all) == 0 || len(all) < lv.Shape.Devices() {
		return nil, fmt.Errorf("list the copies of logical volume %s: LVM shows %d of %d", lv.path(), len(all), lv.Shape.Devices())
	}
	return all, nil
}

// Copies returns the copies of all raid1 volumes of a group, or of the whole host if g is empty.
func (c *Client) Copies(ctx context.Context, g volume.Group) (Copies, error) {
	out, err := c.lvm(ctx, "lvs", healthOfCopiesArgs(g)...)
	if err != nil {
		return nil, fmt.Errorf("list the copies of raid1 volumes: %w", err)
	}
	return parseHealthOfCopies(out)
}

const (
	imageSuffix    = "_rimage_" // in the name of the hidden volume that holds a copy
	metadataSuffix = "_rmeta_"  // in the name of the hidden volume that holds the copy's metadata
)

func parseHealthOfCopies(out []byte) (Copies, error) {
	all := Copies{}
	if err := eachRow(out, volumeRows, all.add); err != nil {
		return nil, err
	}
	for _, copies := range all {
		slices.SortFunc(copies, func(a, b Copy) int { return cmp.Compare(a.Name, b.Name) })
	}
	return all, nil
}

// add parses a row such as "[data_rimage_0]", whose parent is "data". There is one for each segment. A copy is
// unusable without its metadata in "[data_rmeta_0]", so the health of both counts. When a missing device is removed
// from the group, LVM puts an "error" segment in the place of the copy there, and reports no problem with its health.
func (c Copies) add(r *row) {
	group, health := r.text("vg_name"), r.field("lv_health_status")
	name, parent := strings.Trim(r.text("lv_name"), "[]"), strings.Trim(r.field("lv_parent"), "[]")
	uuid, lost := r.text("lv_uuid"), r.text("segtype") == "error"
	if parent == "" {
		return // a conversion left it behind
	}
	of := group + "/" + parent
	holder := strings.Replace(name, metadataSuffix, imageSuffix, 1)
	i := slices.IndexFunc(c[of], func(c Copy) bool { return c.Name == holder })
	if i < 0 {
		i = len(c[of])
		c[of] = append(c[of], Copy{Name: holder})
	}
	found := &c[of][i]
	switch {
	case lost:
		found.Missing, found.Removed = true, true
	case health == "partial":
		found.Missing = true
	case health == "" || health == "writemostly" || health == "mismatches exist":
	default: // "refresh needed", and values of newer releases
		found.Failed = true
	}
	if strings.Contains(name, imageSuffix) {
		found.UUID = uuid
	}
}
