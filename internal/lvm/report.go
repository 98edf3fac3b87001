package lvm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A LogicalVolume is what LVM reports about a logical volume, flexlvm's or not.
type LogicalVolume struct {
	Group        volume.Group
	GroupUUID    string
	Name         volume.Name
	UUID         string
	Size         volume.Bytes // what can be written to its device
	Extent       volume.Bytes // of its group
	Pool         bool         // it is a thin pool itself
	Shape        volume.Shape // empty if its layout is none of flexlvm's
	Data         volume.Bytes // what a thin one holds of its pool; Size if LVM does not report it
	Tags         []string
	Attr         string // lv_attr, as man 8 lvs describes it
	Active       bool
	Skipped      bool // LVM activates it only with --ignoreactivationskip: a person's wish, or see Unfinished
	Open         bool // its device is mounted or otherwise in use, in any namespace
	HasSnapshots bool // LVM would remove them with the volume
	// Origin is the source of a copy-on-write snapshot; empty for all other volumes. Size is then the
	// size of the snapshot's store.
	Origin volume.Name
	// Stored is how much of the store is in use, as far as LVM reports it.
	Stored volume.Bytes
	// Overflowed: the store was too small, or could not be written, so the snapshot holds nothing.
	Overflowed bool
	Created    time.Time
	Health     string // the problem that LVM reports; empty for none
	Sync       string // percentage of a RAID's copies that is in sync
	SyncAction string // what the kernel does to a RAID's copies (man 7 lvmraid); SyncRecover or others
	// On is what the volume holds on each device, including its RAID's metadata. Only
	// Client.Everything sets it, and not for a thin volume.
	On map[string]volume.Bytes
}

// SyncRecover is the SyncAction while the kernel rebuilds copies or brings them up to date. The first
// synchronisation of a volume or of its growth has another name.
const SyncRecover = "recover"

// Takes returns what the volume takes from its pool: for a thin one, what was written to it.
func (lv LogicalVolume) Takes() volume.Bytes {
	if lv.Shape.Layout == volume.Thin {
		return lv.Data
	}
	return lv.Shape.Takes(lv.Size, lv.Extent)
}

// metadata reports whether the volume is a part of another one that holds its metadata.
func (lv LogicalVolume) metadata() bool { return strings.HasPrefix(lv.Attr, "e") }

// ID returns what identifies the volume on this node: its UUID alone does not, because a copy of a volume group
// (vgimportclone) has volumes with the same UUIDs.
func (lv *LogicalVolume) ID() string { return lv.GroupUUID + "/" + lv.UUID }

func (lv LogicalVolume) path() string { return string(lv.Group) + "/" + string(lv.Name) }

// A VolumeGroup is what LVM reports about a volume group.
type VolumeGroup struct {
	Name         volume.Group
	UUID         string
	Size         volume.Bytes
	Free         volume.Bytes
	Extent       volume.Bytes
	MetadataSize volume.Bytes
	MetadataFree volume.Bytes
	// MetadataCopies is how many copies of the metadata LVM keeps on the devices that it can find.
	MetadataCopies int
	Volumes        int
	Devices        int
	Missing        int // devices LVM cannot find
	// Exported (man 8 vgexport): LVM shows it, and neither changes nor activates anything in it.
	Exported bool
	// DeviceFree is the free space of each device that LVM may allocate from, the largest first.
	// Only Client.Everything sets it; nil: unknown.
	DeviceFree []volume.Bytes
	// DeviceNames are the paths in /dev of these devices.
	DeviceNames []string
}

// DevicesWithoutMetadata returns how many devices of the group hold no copy of its metadata, at least, as after
// `pvchange --metadataignore` or `vgchange --vgmetadatacopies`. A volume on such a device may not survive a power cut
// right after it was created or grown: Flush, mkfs and fsync flush only the volume's own devices.
func (g VolumeGroup) DevicesWithoutMetadata() int {
	return max(0, g.Devices-g.Missing-g.MetadataCopies)
}

// A device is a physical volume that LVM may allocate from.
type device struct {
	name string
	free volume.Bytes
}

// report is the structure of --reportformat json: a list of reports, each with lists of rows; every
// value is a string.
type report struct {
	Report []reportPart `json:"report"`
}

type reportPart struct {
	LV  []map[string]string `json:"lv"`
	VG  []map[string]string `json:"vg"`
	PV  []map[string]string `json:"pv"`
	Seg []map[string]string `json:"seg"` // nil except in a full report
	// PVSeg is nil except in a full report.
	PVSeg []map[string]string `json:"pvseg"`
}

func volumeRows(p reportPart) []map[string]string { return p.LV }
func deviceRows(p reportPart) []map[string]string { return p.PV }

func parseReport(out []byte) (report, error) {
	var r report
	if err := json.Unmarshal(out, &r); err != nil {
		return report{}, fmt.Errorf("read LVM's report: %w", err)
	}
	if r.Report == nil {
		return report{}, fmt.Errorf("read LVM's report: it holds no %q", "report")
	}
	return r, nil
}

// parseVolumes parses a report with one row for each volume and separate rows for its segments, or,
// without those, with one row for each segment that holds both.
func parseVolumes(out []byte) ([]LogicalVolume, error) {
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []LogicalVolume
	for _, rep := range r.Report {
		segments := rep.Seg
		if segments == nil {
			segments = rep.LV
		}
		shapes, err := parseShapes(segments)
		if err != nil {
			return nil, err
		}
		places, err := parsePlaces(rep.PVSeg)
		if err != nil {
			return nil, err
		}
		seen := map[string]bool{} // by ID
		for _, f := range rep.LV {
			lv, err := parseVolume(f)
			if err != nil {
				return nil, err
			}
			if seen[lv.ID()] {
				continue // another of its segments
			}
			seen[lv.ID()] = true
			lv.setShape(shapes)
			lv.setPlaces(places)
			all = append(all, lv)
		}
	}
	return all, nil
}

// setShape sets the shape of the volume to that of its segments, or to linear if the report has none
// of them.
func (lv *LogicalVolume) setShape(told map[string]segment) {
	thinPool := lv.Shape.ThinPool
	lv.Shape = volume.Shape{Layout: volume.Linear}
	if s, is := told[lv.UUID]; is {
		lv.Shape, lv.Pool = s.shape, s.kind == kindPool
	}
	if lv.Shape.Layout == volume.Thin {
		lv.Shape.ThinPool = thinPool
	}
}

func parseVolume(fields map[string]string) (LogicalVolume, error) {
	row := row{fields: fields}
	lv := LogicalVolume{
		Group:      volume.Group(row.text("vg_name")),
		GroupUUID:  row.text("vg_uuid"),
		Name:       volume.Name(row.text("lv_name")),
		UUID:       row.text("lv_uuid"),
		Size:       row.bytes("lv_size"),
		Extent:     row.bytes("vg_extent_size"),
		Tags:       row.list("lv_tags"),
		Attr:       row.text("lv_attr"),
		Active:     row.field("lv_active") == "active",
		Open:       row.isSet("lv_device_open", "open"),
		Created:    time.Unix(row.number("lv_time"), 0).UTC(),
		Health:     row.field("lv_health_status"),
		Sync:       row.field("sync_percent"),
		SyncAction: row.field("raid_sync_action"),
	}
	lv.HasSnapshots = strings.ContainsAny(lv.Attr[:1], "oO")
	lv.Skipped = strings.HasSuffix(lv.Attr, "k") // the tenth letter (man 8 lvs)
	lv.parseCopyOnWrite(&row)
	if pool := row.field("pool_lv"); pool != "" {
		lv.Shape.ThinPool = volume.Name(pool)
		lv.Data, _ = row.share("data_percent", lv.Size)
	}
	return lv, row.err
}

// A segment is the last segment of a volume.
type segment struct {
	kind  string
	shape volume.Shape
}

// parseShapes returns segments by the UUID of their volume. The last segment counts, as it does for
// LVM when the volume grows.
func parseShapes(rows []map[string]string) (map[string]segment, error) {
	shapes := make(map[string]segment, len(rows))
	for _, f := range rows {
		row := row{fields: f}
		uuid, kind := row.text("lv_uuid"), row.text("segtype")
		stripes, stripe := row.number("stripes"), row.bytes("stripe_size")
		if row.err != nil {
			return nil, row.err
		}
		shapes[uuid] = segment{kind, shapeOf(kind, int(stripes), stripe)}
	}
	return shapes, nil
}

// shapeOf returns the layout of a segment. LVM counts the copies of a RAID as stripes, too. The
// thin pool of a thin volume is in the volume's row.
func shapeOf(kind string, stripes int, stripe volume.Bytes) volume.Shape {
	switch {
	case kind == "linear":
		return volume.Shape{Layout: volume.Linear}
	case kind == "striped" && stripes > 1:
		return volume.Shape{Layout: volume.Striped, Stripes: stripes, StripeKiB: int(stripe / volume.KiB)}
	case kind == "raid1" && stripes > 1:
		return volume.Shape{Layout: volume.Raid1, Mirrors: stripes - 1}
	case kind == kindThin:
		return volume.Shape{Layout: volume.Thin}
	}
	return volume.Shape{}
}

func parseGroups(out []byte) ([]VolumeGroup, error) {
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []VolumeGroup
	for _, rep := range r.Report {
		devices, err := parseDevices(rep.PV)
		if err != nil {
			return nil, err
		}
		for _, f := range rep.VG {
			g, err := parseGroup(f)
			if err != nil {
				return nil, err
			}
			if rep.PV != nil {
				g.DeviceFree = make([]volume.Bytes, 0, len(devices)) // LVM may be allowed to use none of them
			}
			for _, d := range devices {
				g.DeviceFree = append(g.DeviceFree, d.free)
				g.DeviceNames = append(g.DeviceNames, d.name)
			}
			all = append(all, g)
		}
	}
	return all, nil
}

func parseGroup(fields map[string]string) (VolumeGroup, error) {
	row := row{fields: fields}
	g := VolumeGroup{
		Name:           volume.Group(row.text("vg_name")),
		UUID:           row.text("vg_uuid"),
		Size:           row.bytes("vg_size"),
		Free:           row.bytes("vg_free"),
		Extent:         row.bytes("vg_extent_size"),
		MetadataSize:   row.bytes("vg_mda_size"),
		MetadataFree:   row.bytes("vg_mda_free"),
		MetadataCopies: int(row.number("vg_mda_used_count")),
		Volumes:        int(row.number("lv_count")),
		Devices:        int(row.number("pv_count")),
		Missing:        int(row.number("vg_missing_pv_count")),
		Exported:       row.field("vg_exported") != "",
	}
	return g, row.err
}

// parseDevices omits devices that are missing or not allocatable. The device with the most room
// comes first.
func parseDevices(rows []map[string]string) ([]device, error) {
	var all []device
	for _, f := range rows {
		row := row{fields: f}
		d := device{name: row.text("pv_name"), free: row.bytes("pv_free")}
		usable := row.field("pv_missing") == "" && row.field("pv_allocatable") == "allocatable"
		if row.err != nil {
			return nil, row.err
		}
		if usable {
			all = append(all, d)
		}
	}
	slices.SortStableFunc(all, func(a, b device) int { return cmp.Compare(b.free, a.free) })
	return all, nil
}
