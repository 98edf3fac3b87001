package lvm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A row parses one row's fields and records the first one that is missing or malformed: an
// incomplete report is not used.
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

// text returns a field that is never empty. If it is empty, text records an error and returns a
// dash.
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

// isSet parses a field that is the text set, empty or unknown, as for an inactive volume. Removal depends
// on lv_device_open, and restoring on lv_snapshot_invalid, so a value that this release does not know
// is an error.
func (r *row) isSet(name, set string) bool {
	v := r.field(name)
	switch v {
	case set:
		return true
	case "", "unknown":
		return false
	}
	if r.err == nil {
		r.err = fmt.Errorf("read LVM's report: %s is %q, which this release does not know", name, v)
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

// share parses a percentage with two decimals, and returns that share of whole, rounded up; if LVM
// does not report the percentage, it returns whole, and false.
func (r *row) share(name string, whole volume.Bytes) (volume.Bytes, bool) {
	v := r.field(name)
	if v == "" {
		return whole, false
	}
	percent, hundredths, pointed := strings.Cut(v, ".")
	n, err := strconv.ParseInt(percent+hundredths, 10, 64)
	if (err != nil || !pointed || len(hundredths) != 2 || n < 0 || n > 100_00) && r.err == nil {
		r.err = fmt.Errorf("read LVM's report: %s is %q, not a percentage with two decimals", name, v)
	}
	if r.err != nil {
		return whole, false
	}
	share := volume.Bytes(n)
	return whole/100_00*share + (whole%100_00*share+100_00-1)/100_00, true
}

func (r *row) bytes(name string) volume.Bytes { return volume.Bytes(r.number(name)) }

// eachRow calls parse with the rows of a report that rows returns for each of its parts. It stops at the first row of
// which parse found a field missing or malformed, and returns that error.
func eachRow(out []byte, rows func(reportPart) []map[string]string, parse func(*row)) error {
	r, err := parseReport(out)
	if err != nil {
		return err
	}
	for _, part := range r.Report {
		for _, f := range rows(part) {
			row := row{fields: f}
			parse(&row)
			if row.err != nil {
				return row.err
			}
		}
	}
	return nil
}
