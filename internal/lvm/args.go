package lvm

import (
	"fmt"
	"strconv"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Fields of the reports (man 7 lvmreport).
const (
	volumeFields = "vg_name,vg_uuid,vg_extent_size,lv_name,lv_uuid,lv_size,lv_tags,lv_active,lv_attr,lv_device_open,lv_time,lv_health_status,sync_percent," + cowFields + "," + thinFields
	// cowFields are empty but for copy-on-write snapshots; origin also tells that of a thin one.
	cowFields = "origin,snap_percent,lv_snapshot_invalid"
	// thinFields are empty but for thin pools and the volumes in them.
	thinFields = "pool_lv,data_percent,metadata_percent,lv_metadata_size,lv_when_full"
	// shapeFields are of segments: a report that holds them has a row for each.
	shapeFields  = "segtype,stripes,stripe_size,thin_count,chunk_size,zero"
	deviceFields = "pv_name,pv_free,pv_missing,pv_allocatable"
	// placeFields are of the pieces of the devices, each held by one volume or by none.
	placeFields = "pv_name,pvseg_size,lv_name,lv_parent"
	groupFields = "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_mda_size,vg_mda_free,lv_count,pv_count,vg_missing_pv_count,vg_exported"
)

// reportConfig takes back whatever the host's lvm.conf says of how reports look,
// and makes times seconds since 1970.
const reportConfig = `report{time_format="%s" compact_output=0 compact_output_cols="" binary_values_as_numeric=0 list_item_separator=","}`

// plainArgs make every number plain bytes.
func plainArgs() []string {
	return []string{"--reportformat", "json", "--units", "b", "--nosuffix", "--config", reportConfig}
}

func reportArgs(fields string) []string { return append(plainArgs(), "--options", fields) }

// fullReportArgs ask for all groups and the selected volumes in one report, which LVM
// makes of each group under one lock. Segments are asked for where they tell more than
// that a volume is linear.
func fullReportArgs(volumes string) []string {
	return append(append([]string{"fullreport"}, plainArgs()...),
		"--configreport", "vg", "--options", groupFields,
		"--configreport", "lv", "--options", volumeFields, "--select", volumes,
		"--configreport", "pv", "--options", deviceFields,
		"--configreport", "pvseg", "--options", placeFields,
		"--configreport", "seg", "--options", "lv_uuid,"+shapeFields, "--select", "segtype!=linear && "+volumes)
}

// oursSelection selects the volumes that carry our tag.
const oursSelection = `lv_tags={"` + volume.TagOwned + `"}`

// seenSelection adds the thin volumes of others, which may be in flexlvm's pools (man 8 lvs on lv_attr).
const seenSelection = `(` + oursSelection + ` || lv_attr=~"^V")`

// noOriginSelection selects volumes without snapshots, such as a person may make at any
// moment: lvremove --yes removes those of a volume together with it, also where they do not
// carry our tag. The first letter of lv_attr is that of an origin (man 8 lvs).
const noOriginSelection = `lv_attr!~"^[oO]"`

func groupsArgs(g volume.Group) []string {
	args := reportArgs(groupFields)
	if g != "" {
		// A selection, not an operand: a group that is not there is then an empty
		// list with exit code 0, and every failure is a failure.
		args = append(args, "--select", fmt.Sprintf(`vg_name="%s"`, g))
	}
	return args
}

func volumeArgs(g volume.Group, n volume.Name) []string {
	return append(reportArgs(volumeFields+","+shapeFields), "--select", fmt.Sprintf(`lv_name="%s"`, n), "--", string(g))
}

func volumesArgs() []string {
	return append(reportArgs(volumeFields+","+shapeFields), "--select", oursSelection)
}

// rawVolumesArgs ask for the names of raw block volumes.
func rawVolumesArgs() []string {
	return append(reportArgs("vg_name,lv_name"), "--select", `lv_tags={"`+volume.TagRaw+`"}`)
}

func devicesArgs(g volume.Group) []string {
	return append(reportArgs(deviceFields), "--select", fmt.Sprintf(`vg_name="%s"`, g))
}

// createArgs make lv on these devices, or, without any, wherever LVM wants.
func createArgs(lv LogicalVolume, on []string) []string {
	size := "--size"
	// -W and -Z wipe what an earlier tenant of the extents left, so that neither
	// mkfs nor udev takes it for something living; -y lets them without asking.
	args := []string{"--yes", "--wipesignatures", "y", "--zero", "y"}
	if lv.Shape.Layout == volume.Thin {
		// Its pool zeroes each chunk before it is read, and LVM takes no -Z then.
		size, args = "--virtualsize", []string{"--yes"}
	}
	args = append(args, shapeArgs(lv.Shape)...)
	for _, t := range lv.Tags {
		args = append(args, "--addtag", t)
	}
	args = append(args, size, bytesArg(lv.Size), "--name", string(lv.Name), "--", string(lv.Group))
	return append(args, on...)
}

// snapshotArgs make lv a thin snapshot of origin, active at once and at every boot:
// LVM leaves a snapshot inactive where nothing is said. Without a size LVM makes
// none of a volume that is not thin.
func snapshotArgs(origin, lv LogicalVolume) []string {
	args := []string{"--yes", "--snapshot", "--setactivationskip", "n"}
	for _, t := range lv.Tags {
		args = append(args, "--addtag", t)
	}
	return append(args, "--name", string(lv.Name), "--", origin.path())
}

// copyOnWriteArgs make lv, of its size, a copy-on-write snapshot of origin. LVM writes its
// header and begins it as an empty one.
func copyOnWriteArgs(origin, lv LogicalVolume, chunk volume.Bytes) []string {
	args := []string{"--yes", "--snapshot", "--chunksize", bytesArg(chunk), "--size", bytesArg(lv.Size)}
	for _, t := range lv.Tags {
		args = append(args, "--addtag", t)
	}
	return append(args, "--name", string(lv.Name), "--", origin.path())
}

func shapeArgs(h volume.Shape) []string {
	switch h.Layout {
	case volume.Striped:
		return []string{"--type", "striped", "--stripes", strconv.Itoa(h.Stripes), "--stripesize", strconv.Itoa(h.StripeKiB) + "k"}
	case volume.Raid1:
		// The copies are made alike in the background, while the volume is in use:
		// without that (--nosync), a read after a crash might tell two stories.
		return []string{"--type", "raid1", "--mirrors", strconv.Itoa(h.Mirrors)}
	case volume.Thin:
		return []string{"--type", "thin", "--thinpool", string(h.ThinPool)}
	}
	return []string{"--type", "linear"}
}

// extendArgs name no layout: LVM goes on with that of the last segment.
func extendArgs(lv LogicalVolume, size volume.Bytes, on []string) []string {
	return append([]string{"--yes", "--size", bytesArg(size), "--", lv.path()}, on...)
}

// copiesArgs ask for the hidden volumes that lv is made of.
func copiesArgs(lv LogicalVolume) []string {
	return append(reportArgs("lv_name,devices"), "--all", "--select", fmt.Sprintf(`lv_parent="%s"`, lv.Name), "--", string(lv.Group))
}

// retagArgs lets LVM itself select the volume, by its UUID and by the tags that
// are to go: a command that a killed call has left behind then changes nothing
// that has moved on meanwhile.
func retagArgs(lv LogicalVolume, del, add []string) []string {
	var args []string
	sel := fmt.Sprintf(`lv_uuid="%s"`, lv.UUID)
	for _, t := range del {
		args = append(args, "--deltag", t)
		sel += fmt.Sprintf(` && lv_tags={"%s"}`, t)
	}
	for _, t := range add {
		args = append(args, "--addtag", t)
	}
	return append(args, "--select", sel, "--", string(lv.Group))
}

func removeArgs(lv LogicalVolume) []string {
	sel := fmt.Sprintf(`lv_uuid="%s" && lv_name="%s" && %s && %s`, lv.UUID, lv.Name, oursSelection, noOriginSelection)
	return []string{"--yes", "--select", sel, "--", string(lv.Group)}
}
