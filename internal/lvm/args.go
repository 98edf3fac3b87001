package lvm

import (
	"fmt"
	"strconv"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Fields of the reports (man 7 lvmreport).
const (
	volumeFields = "vg_name,vg_uuid,vg_extent_size,lv_name,lv_uuid,lv_size,lv_tags,lv_active,lv_attr,lv_device_open,lv_time,lv_health_status,sync_percent,raid_sync_action," + cowFields + "," + thinFields
	// cowFields are empty except for copy-on-write snapshots; origin is also set for a thin
	// snapshot.
	cowFields = "origin,snap_percent,lv_snapshot_invalid"
	// thinFields are empty except for thin pools and the volumes in them.
	thinFields = "pool_lv,data_percent,metadata_percent,lv_metadata_size,lv_when_full"
	// shapeFields describe segments: a report with them has a row for each segment.
	shapeFields  = "segtype,stripes,stripe_size,thin_count,chunk_size,zero"
	deviceFields = "pv_name,pv_free,pv_missing,pv_allocatable"
	// placeFields describe the segments of devices, each of which belongs to one volume or is free.
	placeFields = "pv_name,pvseg_size,lv_name,lv_parent"
	groupFields = "vg_name,vg_uuid,vg_size,vg_free,vg_extent_size,vg_mda_size,vg_mda_free,vg_mda_used_count,lv_count,pv_count,vg_missing_pv_count,vg_exported"
)

// reportConfig overrides the report settings of the host's lvm.conf, and makes times seconds since
// 1970.
const reportConfig = `report{time_format="%s" compact_output=0 compact_output_cols="" binary_values_as_numeric=0 list_item_separator=","}`

// noArchive keeps LVM from archiving the group's metadata before a command. By default, LVM writes all
// of it as text to /etc/lvm/archive before each change, lists that folder each time, and keeps every
// file for 30 days. Tags change often, and the archives of the other changes show what created, grew or
// removed a volume. /etc/lvm/backup still holds the current metadata.
const noArchive = "backup{archive=0}"

// plainArgs returns arguments for a JSON report in which sizes are plain numbers of bytes.
func plainArgs() []string {
	return []string{"--reportformat", "json", "--units", "b", "--nosuffix", "--config", reportConfig}
}

func reportArgs(fields string) []string { return append(plainArgs(), "--options", fields) }

// fullReportArgs requests all groups and the selected volumes in one report, in which LVM reports
// each group under one lock. Segments are requested only if they are not linear.
func fullReportArgs(volumes string) []string {
	return append(append([]string{"fullreport"}, plainArgs()...),
		"--configreport", "vg", "--options", groupFields,
		"--configreport", "lv", "--options", volumeFields, "--select", volumes,
		"--configreport", "pv", "--options", deviceFields,
		"--configreport", "pvseg", "--options", placeFields,
		"--configreport", "seg", "--options", "lv_uuid,"+shapeFields, "--select", "segtype!=linear && "+volumes)
}

// oursSelection selects the volumes that have flexlvm's tag.
const oursSelection = `lv_tags={"` + volume.TagOwned + `"}`

// seenSelection adds other thin volumes, which may be in flexlvm's pools (man 8 lvs on lv_attr).
const seenSelection = `(` + oursSelection + ` || lv_attr=~"^V")`

// noOriginSelection selects volumes without snapshots. A person may create a snapshot at any
// moment, and lvremove --yes removes a volume's snapshots together with it, even those without
// flexlvm's tag. The first letter of lv_attr marks an origin (man 8 lvs).
const noOriginSelection = `lv_attr!~"^[oO]"`

func groupsArgs(g volume.Group) []string {
	args := reportArgs(groupFields)
	if g != "" {
		// A selection, not an operand: a missing group is then an empty list with exit code 0, and
		// every failure is a real one.
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

// rawVolumesArgs requests the names of raw block volumes.
func rawVolumesArgs() []string {
	return append(reportArgs("vg_name,lv_name"), "--select", `lv_tags={"`+volume.TagRaw+`"}`)
}

// metadataDevicesArgs requests the devices of a group, and how many copies of the group's metadata each holds.
func metadataDevicesArgs(g volume.Group) []string {
	return append(reportArgs("pv_name,pv_missing,pv_mda_used_count"), "--select", fmt.Sprintf(`vg_name="%s"`, g))
}

func devicesArgs(g volume.Group) []string {
	return append(reportArgs(deviceFields), "--select", fmt.Sprintf(`vg_name="%s"`, g))
}

// createArgs returns the arguments that create lv on these devices or, without any, wherever LVM
// chooses.
func createArgs(lv LogicalVolume, on []string) []string {
	size := "--size"
	// -W and -Z wipe what an earlier tenant of the extents left, so that neither mkfs nor udev
	// takes it for live data; -y lets them do so without a prompt.
	args := []string{"--yes", "--wipesignatures", "y", "--zero", "y"}
	if lv.Shape.Layout == volume.Thin {
		// The pool zeroes each chunk before it is read, and LVM does not accept -Z then.
		size, args = "--virtualsize", []string{"--yes"}
	}
	args = append(args, shapeArgs(lv.Shape)...)
	for _, t := range lv.Tags {
		args = append(args, "--addtag", t)
	}
	args = append(args, size, bytesArg(lv.Size), "--name", string(lv.Name), "--", string(lv.Group))
	return append(args, on...)
}

// snapshotArgs returns the arguments that create lv as a thin snapshot of origin, active immediately
// and at every boot: by default LVM leaves a snapshot inactive. No size is given, so LVM fails if
// origin is not thin.
func snapshotArgs(origin, lv LogicalVolume) []string {
	args := []string{"--yes", "--snapshot", "--setactivationskip", "n"}
	for _, t := range lv.Tags {
		args = append(args, "--addtag", t)
	}
	return append(args, "--name", string(lv.Name), "--", origin.path())
}

// copyOnWriteArgs returns the arguments that create lv, of its size, as a copy-on-write snapshot of
// origin. LVM writes its header, so that it starts empty.
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
		// The copies are synchronized in the background, while the volume is in use: without that
		// (--nosync), reads after a crash might return different data.
		return []string{"--type", "raid1", "--mirrors", strconv.Itoa(h.Mirrors)}
	case volume.Thin:
		return []string{"--type", "thin", "--thinpool", string(h.ThinPool)}
	}
	return []string{"--type", "linear"}
}

// extendArgs names no layout: LVM continues with the layout of the last segment.
func extendArgs(lv LogicalVolume, size volume.Bytes, on []string) []string {
	return append([]string{"--yes", "--size", bytesArg(size), "--", lv.path()}, on...)
}

// copiesArgs requests the hidden volumes that lv consists of.
func copiesArgs(lv LogicalVolume) []string {
	return append(reportArgs("lv_name,devices"), "--all", "--select", fmt.Sprintf(`lv_parent="%s"`, lv.Name), "--", string(lv.Group))
}

// healthOfCopiesArgs requests the hidden volumes that hold copies and their metadata, of one group, or of
// all groups if g is empty.
func healthOfCopiesArgs(g volume.Group) []string {
	args := append(reportArgs("vg_name,lv_name,lv_uuid,lv_parent,lv_health_status,segtype"), "--all", "--select", `lv_name=~"`+imageSuffix+`" || lv_name=~"`+metadataSuffix+`"`)
	if g != "" {
		args = append(args, "--", string(g))
	}
	return args
}

// retagArgs lets LVM itself select the volume, by its UUID and by the tags to be removed: a command
// that a killed call has left behind then changes nothing if the volume has changed since.
func retagArgs(lv LogicalVolume, del, add []string) []string {
	args := []string{"--config", noArchive}
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
