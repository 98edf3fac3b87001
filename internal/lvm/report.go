package lvm

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A LogicalVolume is what LVM reports of one, whoever owns it.
type LogicalVolume struct {
	Group     volume.Group
	GroupUUID string
	Name      volume.Name
	UUID      string
	Size      volume.Bytes
	Tags      []string
	Active    bool
	Open      bool // its device is mounted or otherwise in use, in any namespace
	Origin    bool // snapshots depend on it, and LVM would remove them with it
	Created   time.Time
}

func (lv LogicalVolume) path() string { return string(lv.Group) + "/" + string(lv.Name) }

// A VolumeGroup is what LVM reports of one.
type VolumeGroup struct {
	Name         volume.Group
	UUID         string
	Size         volume.Bytes
	Free         volume.Bytes
	Extent       volume.Bytes
	MetadataSize volume.Bytes
	MetadataFree volume.Bytes
	Volumes      int
	Devices      int
	Missing      int // devices LVM cannot find
}

// report is the shape of --reportformat json: a list of reports, each with a
// list of rows; every value is a string.
type report struct {
	Report []struct {
		LV []map[string]string `json:"lv"`
		VG []map[string]string `json:"vg"`
	} `json:"report"`
}

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

func parseVolumes(out []byte) ([]LogicalVolume, error) {
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []LogicalVolume
	for _, rep := range r.Report {
		for _, f := range rep.LV {
			row := row{fields: f}
			lv := LogicalVolume{
				Group:     volume.Group(row.text("vg_name")),
				GroupUUID: row.text("vg_uuid"),
				Name:      volume.Name(row.text("lv_name")),
				UUID:      row.text("lv_uuid"),
				Size:      row.bytes("lv_size"),
				Tags:      row.list("lv_tags"),
				Active:    row.field("lv_active") == "active",
				Open:      row.open(),
				Origin:    strings.ContainsAny(row.text("lv_attr")[:1], "oO"),
				Created:   time.Unix(row.number("lv_time"), 0).UTC(),
			}
			if row.err != nil {
				return nil, row.err
			}
			all = append(all, lv)
		}
	}
	return all, nil
}

func parseGroups(out []byte) ([]VolumeGroup, error) {
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []VolumeGroup
	for _, rep := range r.Report {
		for _, f := range rep.VG {
			row := row{fields: f}
			g := VolumeGroup{
				Name:         volume.Group(row.text("vg_name")),
				UUID:         row.text("vg_uuid"),
				Size:         row.bytes("vg_size"),
				Free:         row.bytes("vg_free"),
				Extent:       row.bytes("vg_extent_size"),
				MetadataSize: row.bytes("vg_mda_size"),
				MetadataFree: row.bytes("vg_mda_free"),
				Volumes:      int(row.number("lv_count")),
				Devices:      int(row.number("pv_count")),
				Missing:      int(row.number("vg_missing_pv_count")),
			}
			if row.err != nil {
				return nil, row.err
			}
			all = append(all, g)
		}
	}
	return all, nil
}

// A row reads one row's fields and remembers the first that is missing or is
// not what it should be: half a report is no report.
type row struct {
	fields map[string]string
	err    error
}

func (r *row) field(name string) string {
	v, ok := r.fields[name]
	if !ok && r.err == nil {
		r.err = fmt.Errorf("read LVM's report: a row has no %s", name)
	}
	return strings.TrimSpace(v)
}

// text is a field that is never empty; a dash stands for one that is, beside the
// error.
func (r *row) text(name string) string {
	v := r.field(name)
	if v != "" {
		return v
	}
	if r.err == nil {
		r.err = fmt.Errorf("read LVM's report: %s is empty", name)
	}
	return "-"
}

// open reads lv_device_open, on which removal depends: an answer of another
// release is no answer. It is unknown for an inactive volume.
func (r *row) open() bool {
	v := r.field("lv_device_open")
	switch v {
	case "open":
		return true
	case "", "unknown":
		return false
	}
	if r.err == nil {
		r.err = fmt.Errorf("read LVM's report: lv_device_open is %q, which this release does not know", v)
	}
	return false
}

func (r *row) list(name string) []string {
	v := r.field(name)
	if v == "" {
		return nil
	}
	return strings.Split(v, ",")
}

func (r *row) number(name string) int64 {
	v := r.field(name)
	n, err := strconv.ParseInt(v, 10, 64)
	if (err != nil || n < 0) && r.err == nil {
		r.err = fmt.Errorf("read LVM's report: %s is %q, not a number", name, v)
	}
	return n
}

func (r *row) bytes(name string) volume.Bytes { return volume.Bytes(r.number(name)) }
