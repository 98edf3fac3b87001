// Package disk lists the whole disks of a host as the kernel and udev show them. It opens no
// device, except in CheckZeroSamples and CheckZeroEnds, which may hang on a failing disk (see Reads).
package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Disk is a whole disk: not a partition, and not built on other devices.
type Disk struct {
	Path       string   // /dev/NAME, as the kernel calls it
	Number     uint64   // as in stat's st_rdev
	ID         string   // see identify; empty if the disk does not identify itself
	Links      []string // paths in /dev/disk/by-id and by-path that lead to it
	Size       volume.Bytes
	Rotational bool
	Removable  bool // such as a memory card, or anything on USB
	Remote     bool // reached over a network, where other nodes may reach it as well
}

// Host holds the paths of the host's file systems.
type Host struct {
	Sys, Dev string
}

// OnHost returns the paths on any host.
func OnHost() Host { return Host{Sys: "/sys", Dev: "/dev"} }

// List returns the whole disks of the host, in the order of their paths. Devices without hardware
// below them, such as loop, device-mapper and MD devices, are not disks. A disk that disappears
// meanwhile is left out.
func (h Host) List() ([]Disk, error) {
	entries, err := os.ReadDir(filepath.Join(h.Sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	links, err := h.links()
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var all []Disk
	for _, e := range entries {
		d, is, err := h.read(e.Name())
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list disks: %s: %w", e.Name(), err)
		}
		if is {
			d.Links = links[d.Number]
			all = append(all, d)
		}
	}
	return all, nil
}

// read describes one block device; false if it is not a disk.
func (h Host) read(name string) (Disk, bool, error) {
	dir, err := filepath.EvalSymlinks(filepath.Join(h.Sys, "block", name))
	if err != nil {
		return Disk{}, false, err
	}
	if _, err := os.Stat(filepath.Join(dir, "device")); err != nil {
		return Disk{}, false, err
	}
	// The kernel writes a slash in a device's name as an exclamation mark.
	d := Disk{Path: filepath.Join(h.Dev, strings.ReplaceAll(name, "!", "/"))}
	sectors, err := number(filepath.Join(dir, "size"))
	if err != nil {
		return d, false, err
	}
	d.Size = volume.Bytes(sectors) * 512
	rotational, err := number(filepath.Join(dir, "queue/rotational"))
	if err != nil {
		return d, false, err
	}
	removable, err := number(filepath.Join(dir, "removable"))
	if err != nil {
		return d, false, err
	}
	d.Rotational, d.Removable = rotational != 0, removable != 0 || isDetachable(dir)
	text, err := line(filepath.Join(dir, "dev"))
	if err != nil {
		return d, false, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(text, "%d:%d", &major, &minor); err != nil {
		return d, false, fmt.Errorf("read its number %q: %w", text, err)
	}
	d.Number = unix.Mkdev(major, minor)
	d.ID = identify(dir)
	d.Remote = remote(dir)
	return d, true, nil
}

// identify returns what distinguishes a disk from all others, wherever it is plugged in: its WWN,
// as the kernel prints it (naa.…, eui.…, nvme.…, t10.…), or else the serial number of a virtual
// disk (serial-…) or of a memory card (cid-…). Spaces become underscores. It is empty if there is
// none of these, or only zeros or another placeholder.
func identify(dir string) string {
	for _, at := range []struct{ file, prefix string }{
		{"wwid", ""}, {"device/wwid", ""}, {"serial", "serial-"}, {"device/cid", "cid-"}, {"device/serial", "serial-"},
	} {
		text, err := line(filepath.Join(dir, at.file))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EINVAL) {
			continue // how the kernel reports that the disk has none
		}
		if err != nil {
			return "" // next time this file may be readable, and the disk would have another ID
		}
		id := strings.Join(strings.Fields(text), "_")
		_, value, dotted := strings.Cut(id, ".")
		if !dotted {
			value = id
		}
		if strings.Trim(value, "0x-_.") == "" || slices.Contains(placeholders, strings.ToLower(value)) || slices.Contains(placeholders, strings.ToLower(id)) {
			continue
		}
		return at.prefix + strings.Map(plain, id)
	}
	return ""
}

// placeholders are what disks without a serial number report, in lower case. QEMU's storage daemon
// reports (null) for each of its disks.
var placeholders = []string{"(null)", "null", "none", "n/a", "unknown", "default", "default_string", "not_specified", "to_be_filled_by_o.e.m."}

// isDetachable reports whether a disk is of a kind that people remove as a whole. The kernel's
// "removable" means a medium that is removed from its drive, so it applies neither to a USB disk
// nor to a memory card in its slot.
func isDetachable(dir string) bool {
	kind, err := line(filepath.Join(dir, "device/type"))
	return err == nil && kind == "SD" || onUSB.MatchString(dir)
}

var onUSB = regexp.MustCompile(`/usb[0-9]+/`)

// plain replaces characters that an ID must not contain: commas and at signs have a meaning in the
// annotation that names IDs.
func plain(r rune) rune {
	if r <= ' ' || r >= 0x7f || strings.ContainsRune(`,@/\*?[]`, r) {
		return '_'
	}
	return r
}

// remote reports whether a disk is reached by Fibre Channel, iSCSI or NVMe over a network, or is a
// Ceph image.
func remote(dir string) bool {
	for _, part := range []string{"/rport-", "/session", "/devices/rbd/"} {
		if strings.Contains(dir, part) {
			return true
		}
	}
	var transports []string
	for _, pattern := range []string{"device/transport", "device/nvme*/transport"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return true
		}
		transports = append(transports, found...)
	}
	return slices.ContainsFunc(transports, func(file string) bool {
		transport, err := line(file)
		return err != nil || transport != "pcie"
	})
}

// links returns the paths that udev has created, by device number.
func (h Host) links() (map[uint64][]string, error) {
	out := map[uint64][]string{}
	for _, kind := range []string{"by-id", "by-path"} {
		dir := filepath.Join(h.Dev, "disk", kind)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // a host without udev, or without such a disk
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
				continue // it no longer leads anywhere
			}
			out[st.Rdev] = append(out[st.Rdev], path)
		}
	}
	return out, nil
}

// NumberOf returns the number of the device that a path leads to.
func NumberOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("device %s: is not a block device", path)
	}
	return st.Rdev, nil
}

func line(file string) (string, error) {
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

func number(file string) (int64, error) {
	text, err := line(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s holds %q, which is no number", file, text)
	}
	return n, nil
}
