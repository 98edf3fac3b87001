package lvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A pod may write to its raw block volume what LVM takes for a physical volume: of a group with the
// name of one of flexlvm's, with volumes that have its tags. LVM does not scan logical volumes
// unless it is configured to (devices/scan_lvs), but it scans flexlvm's mappings of them, and the
// loop devices that the kubelet attaches to these. So flexlvm hides these devices from its own LVM
// commands. LVM before 2.02.184 always scans logical volumes, and 2.03.00 to 2.03.02 do by default;
// the former fails if it is queried for the setting (docs/block.md).

// tenants finds the devices whose content belongs to pods.
type tenants struct {
	dev, sys, conf string
	// backing returns the number of the block device that backs a loop device.
	backing func(loop string) (uint64, error)
}

func hostTenants() tenants {
	return tenants{dev: "/dev", sys: "/sys", conf: "/etc/lvm", backing: loopBacking}
}

// withoutTenants returns the arguments of an LVM command that hide the tenants' devices from it.
func (c *Client) withoutTenants(ctx context.Context, args []string) ([]string, error) {
	patterns, err := c.tenants.patterns()
	set := c.tenants.setsScan()
	if err != nil || len(patterns) == 0 && !set {
		return args, err
	}
	filter, scans, err := c.hostDevices(ctx, set)
	if err != nil {
		return nil, err
	}
	if scans && filter != "" { // without a filter nothing can hide them
		volumes, err := c.rawVolumes(ctx, patterns, filter)
		if err != nil {
			return nil, err
		}
		patterns = append(volumes, patterns...)
	}
	return hidden(args, patterns, filter), nil
}

// patterns returns the patterns for LVM's filter; none if no pod has such a device. The kubelet
// attaches loop devices at any moment, also between this scan and LVM's, so LVM sees only those
// that exist already and are backed by something else. patterns is called before every command, and
// costs next to nothing if no such device exists.
//
// A device has many names. LVM uses the device if any of them is accepted, and otherwise not if any
// is rejected. The kernel's own names are enough, because tenants cannot assign them. The patterns
// are this simple because LVM's regular expressions mishandle "(…)?" beside other patterns.
func (t tenants) patterns() (out []string, err error) {
	mapper := filepath.Join(t.dev, "mapper")
	entries, err := os.ReadDir(mapper)
	if err != nil {
		return nil, nil //nolint:nilerr // then there are no mappings
	}
	there := false
	var numbers []uint64
	for _, e := range entries {
		if !dm.IsBlockName(e.Name()) {
			continue
		}
		there = true
		var st unix.Stat_t
		if unix.Stat(filepath.Join(mapper, e.Name()), &st) == nil {
			numbers = append(numbers, st.Rdev)
		}
	}
	if !there {
		return nil, nil
	}
	blocks, err := os.ReadDir(filepath.Join(t.sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("look for loop devices: %w", err) // a group may be on one, and would be missing
	}
	for _, b := range blocks {
		if _, err := os.Lstat(filepath.Join(t.sys, "block", b.Name(), "loop")); errors.Is(err, fs.ErrNotExist) {
			continue // not a loop device, or nothing backs it
		}
		loop := filepath.Join(t.dev, b.Name())
		number, err := t.backing(loop)
		if errors.Is(err, unix.ENXIO) || err == nil && slices.Contains(numbers, number) {
			continue // nothing backs it any more, or a pod's device does
		}
		out = append(out, "a|^"+loop+"$|", "a|^"+loop+"p|") // also if this cannot be determined: a group may be on it
	}
	return append(out, "r|^"+filepath.Join(t.dev, "loop")+"[0-9]|", "r|^"+filepath.Join(mapper, dm.BlockName(""))+"|"), nil
}

func loopBacking(loop string) (uint64, error) {
	f, err := os.OpenFile(loop, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return 0, fmt.Errorf("ask what %s is made of: %w", loop, err)
	}
	return info.Rdevice, nil
}

// setsScan reports whether the host's configuration may turn scan_lvs on; that of many
// distributions turns it off, which is the default. Only then is LVM queried for the setting,
// because that is another process before every command.
func (t tenants) setsScan() bool {
	files, _ := filepath.Glob(filepath.Join(t.conf, "*.conf")) // the host's, and those of its tags (man 5 lvm.conf)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return true // then LVM is queried
		}
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(line, "#")
			if strings.Contains(scanOff.ReplaceAllString(code, ""), scanSetting) {
				return true
			}
		}
	}
	return false
}

const scanSetting = "scan_lvs"

// scanOff matches an assignment that turns scan_lvs off.
var scanOff = regexp.MustCompile(scanSetting + `\s*=\s*0(\s|}|$)`)

// defaultFilters are the values that LVM reports for a filter that the host has not set: since 2.03.06,
// and before. Both accept every device.
var defaultFilters = []string{`["a|.*|"]`, `["a|.*/|"]`}

// FiltersSet reports whether the host has set both of LVM's device filters. flexlvm then cannot hide
// from its LVM commands what pods write to raw block volumes (docs/block.md).
func FiltersSet(filter, globalFilter string) bool {
	return !slices.Contains(defaultFilters, filter) && !slices.Contains(defaultFilters, globalFilter)
}

// hostDevices returns which of LVM's two device filters the host has not set, and, if askScan,
// whether LVM scans logical volumes. What the host's filters hide, such as one of two paths to a
// disk, has to stay hidden. Patterns cannot be added to a filter that accepts other devices,
// because a device has several names. If the host has set both filters, hostDevices returns none,
// and the host's have to hide the tenants' devices (docs/block.md).
func (c *Client) hostDevices(ctx context.Context, askScan bool) (filter string, scans bool, err error) {
	args := []string{"lvmconfig", "--typeconfig", "full", "devices/filter", "devices/global_filter"}
	if askScan {
		args = append(args, "devices/"+scanSetting)
	}
	out, err := c.run.CommandContext(ctx, "lvm", args...).Output()
	if err != nil {
		return "", false, fmt.Errorf("read the host's LVM filters: %w", err)
	}
	lines := strings.Fields(string(out))
	for _, name := range []string{"filter", "global_filter"} {
		isDefault := func(value string) bool { return slices.Contains(lines, name+"="+value) }
		if slices.ContainsFunc(defaultFilters, isDefault) {
			filter = name
			break
		}
	}
	return filter, slices.Contains(lines, scanSetting+"=1"), nil
}

// rawVolumes returns the patterns that hide the logical volumes of raw block volumes, in groups
// that are not on logical volumes themselves. A group on logical volumes stays visible: its devices
// have no flexlvm tag. The query does not depend on what pods have written: LVM gets the patterns
// that hide the pods' other devices, and does not scan logical volumes.
func (c *Client) rawVolumes(ctx context.Context, patterns []string, filter string) ([]string, error) {
	args := configured(rawVolumesArgs(), scanSetting+"=0", filterSetting(patterns, filter))
	out, err := c.run.CommandContext(ctx, "lvs", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("list raw block volumes, at which LVM must not look: %w", err)
	}
	var all []string
	err = eachRow(out, volumeRows, func(r *row) {
		name := volume.DeviceName(volume.Group(r.fields["vg_name"]), volume.Name(r.fields["lv_name"]))
		// Of the characters in names, only plus and dot are special in a regular expression. A
		// dot matches both.
		all = append(all, "r|^"+filepath.Join(c.tenants.dev, "mapper", strings.ReplaceAll(name, "+", "."))+"$|")
	})
	if err != nil {
		return nil, fmt.Errorf("list raw block volumes, at which LVM must not look: %w", err)
	}
	return all, nil
}

// hidden returns the arguments of a command with a filter that hides these devices.
func hidden(args, patterns []string, filter string) []string {
	return configured(args, filterSetting(patterns, filter))
}

func filterSetting(patterns []string, filter string) string {
	if filter == "" || len(patterns) == 0 {
		return ""
	}
	return filter + `=["` + strings.Join(patterns, `","`) + `"]`
}

// configured returns the arguments of a command with settings for LVM's section "devices"; empty
// settings are ignored.
func configured(args []string, settings ...string) []string {
	settings = slices.DeleteFunc(settings, func(s string) bool { return s == "" })
	if len(settings) == 0 {
		return args
	}
	config := "devices{" + strings.Join(settings, " ") + "}"
	out := slices.Clone(args)
	// LVM takes the option once, and before the operands.
	if i := slices.Index(out, "--config"); i >= 0 && i+1 < len(out) {
		out[i+1] += " " + config
		return out
	}
	at := 0
	if len(out) > 0 && !strings.HasPrefix(out[0], "-") {
		at = 1 // the name of a subcommand
	}
	return slices.Insert(out, at, "--config", config)
}
