package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ioMax is the file of a group's limits. It has a line for each device with a limit, such as "254:3
// rbps=1048576 wbps=max riops=max wiops=max".
const ioMax = "io.max"

// IOLimits returns the limits of a pod's group, by device number, as in stat's st_rdev.
// group is one that Pods returned.
func (t *Tree) IOLimits(group string) (map[uint64]volume.IOLimits, error) {
	content, err := os.ReadFile(filepath.Join(group, ioMax))
	if err != nil {
		return nil, t.explain(group, err)
	}
	out := map[uint64]volume.IOLimits{}
	for line := range strings.Lines(string(content)) {
		device, limits, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", ioMax, t.name(group), err)
		}
		out[device] = limits
	}
	return out, nil
}

// SetIOLimits sets all limits of a group on a device; 0 removes a limit. It is one write, which the
// kernel applies completely or not at all.
func (t *Tree) SetIOLimits(group string, device uint64, limits volume.IOLimits) error {
	f, err := os.OpenFile(filepath.Join(group, ioMax), os.O_WRONLY, 0)
	if err != nil {
		return t.explain(group, err)
	}
	_, err = fmt.Fprintf(f, "%d:%d %s\n", unix.Major(device), unix.Minor(device), limits)
	return t.explain(group, errors.Join(err, f.Close()))
}

// explain converts an error on a group's io.max to one that names the cause.
func (t *Tree) explain(group string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV): // also for a group that was removed while its file was open
		return ErrGone
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(group); errors.Is(err, fs.ErrNotExist) {
			return ErrGone
		}
		return fmt.Errorf("control group %s: %w", t.name(group), ErrNoController)
	}
	return fmt.Errorf("limit the IO of control group %s: %w", t.name(group), err)
}

func (t *Tree) name(group string) string { return strings.TrimPrefix(group, t.root) }

// parseLine ignores unknown words, which are not flexlvm's. Limits that others have set may be of
// any size.
func parseLine(line string) (uint64, volume.IOLimits, error) {
	number, words, _ := strings.Cut(strings.TrimSpace(line), " ")
	major, minor, _ := strings.Cut(number, ":")
	high, err := strconv.ParseUint(major, 10, 32)
	low, err2 := strconv.ParseUint(minor, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		return 0, volume.IOLimits{}, fmt.Errorf("the line %q: %w", line, err)
	}
	var l volume.IOLimits
	for word := range strings.FieldsSeq(words) {
		name, value, _ := strings.Cut(word, "=")
		var into *int64
		switch name {
		case "rbps":
			into = (*int64)(&l.ReadBps)
		case "wbps":
			into = (*int64)(&l.WriteBps)
		case "riops":
			into = &l.ReadIOPS
		case "wiops":
			into = &l.WriteIOPS
		default:
			continue
		}
		if value == "max" {
			continue
		}
		if *into, err = strconv.ParseInt(value, 10, 64); err != nil {
			return 0, volume.IOLimits{}, fmt.Errorf("the line %q: %w", line, err)
		}
	}
	return unix.Mkdev(uint32(high), uint32(low)), l, nil
}
