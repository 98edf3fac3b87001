package lvm

import (
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// places maps the names of volumes to the extents that they hold on each device.
type places map[volume.Name]map[string]volume.Bytes

// parsePlaces parses rows such as 18 extents of "/dev/sdb" that belong to "[data_rimage_0]", whose
// parent is "data": LVM shows the hidden parts of a volume in brackets.
func parsePlaces(rows []map[string]string) (places, error) {
	out := places{}
	for _, f := range rows {
		row := row{fields: f}
		device, extents := row.text("pv_name"), row.number("pvseg_size")
		holder, parent := volume.Name(row.field("lv_name")), volume.Name(row.field("lv_parent"))
		if row.err != nil {
			return nil, row.err
		}
		if parent != "" {
			holder = parent
		}
		if holder == "" {
			continue // it is free
		}
		if out[holder] == nil {
			out[holder] = map[string]volume.Bytes{}
		}
		out[holder][device] += volume.Bytes(extents)
	}
	return out, nil
}

// setPlaces sets what the volume holds on each device. If that is not exactly what the volume takes,
// setPlaces sets nothing: the volume has a layout that flexlvm does not use, such as one with a cache.
func (lv *LogicalVolume) setPlaces(of places) {
	if lv.Shape.Layout == volume.Thin {
		return
	}
	on, sum := map[string]volume.Bytes{}, volume.Bytes(0)
	for device, extents := range of[lv.Name] {
		on[device] = extents * lv.Extent
		sum += on[device]
	}
	if sum > 0 && sum == lv.Takes() {
		lv.On = on
	}
}

// parseCopies returns the devices that hold the copies of a RAID, each once, from rows such as
// "[data_rimage_0]" on "/dev/sdb(42)", where 42 is an extent.
func parseCopies(out []byte) ([]string, error) {
	var on []string
	err := eachRow(out, volumeRows, func(r *row) {
		name := r.text("lv_name")
		for _, d := range r.list("devices") {
			d, _, _ = strings.Cut(d, "(")
			if strings.Contains(name, imageSuffix) && !slices.Contains(on, d) {
				on = append(on, d)
			}
		}
	})
	return on, err
}
