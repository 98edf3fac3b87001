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

// Where a pod has a raw block volume, it may write there what LVM takes for a physical volume: of
// a group with the name of one of flexlvm's, and volumes with its tags. LVM does not look at
// logical volumes, unless it is told to (devices/scan_lvs), but at their mappings, and at the loop devices
// that kubelet makes of these. So flexlvm's own commands do not see them. LVM before 2.02.184 always looks, and
// 2.03.00 to 2.03.02 do by default; the former fails if it is asked for the setting (docs/block.md).

// tenants finds the devices whose content is a pod's.
type tenants struct {
	dev, sys, conf string
	// backing returns the number of the block device that a loop device is made of.
	backing func(loop string) (uint64, error)
}

func hostTenants() tenants {
	return tenants{dev: "/dev", sys: "/sys", conf: "/etc/lvm", backing: loopBacking}
}

// withoutTenants are the arguments of an LVM command that hide the tenants' devices from it.
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
	if scans && filter != "" { // else nothing could hide them
		volumes, err := c.rawVolumes(ctx, patterns, filter)
		if err != nil {
			return nil, err
		}
		patterns = append(volumes, patterns...)
	}
	return hidden(args, patterns, filter), nil
}

// patterns are what LVM's filter gets; none where no pod has such a device. The kubelet makes loop
// devices at any moment, also between this and LVM's own look, so LVM sees those alone that are there
// already and made of something else. It is called before every command, and costs next to nothing
// where there are none.
//
// A device has many names. LVM takes it if any of them is accepted, and else not if any is rejected: the
// kernel's own names are enough, of which tenants have none to give. The patterns are as plain as they
// are because LVM's regular expressions go wrong on those with "(…)?" beside others.
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
			continue // no loop device, or made of nothing
		}
		loop := filepath.Join(t.dev, b.Name())
		number, err := t.backing(loop)
		if errors.Is(err, unix.ENXIO) || err == nil && slices.Contains(numbers, number) {
			continue // it is made of nothing any more, or of a pod's device
		}
		out = append(out, "a|^"+loop+"$|", "a|^"+loop+"p|") // also where nobody can tell: a group may be on it
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

// setsScan reports whether the host's configuration may turn scan_lvs on; that of many distributions says
// that it is off, which is the default. Only then is LVM asked for it: that is another process before every
// command.
func (t tenants) setsScan() bool {
	files, _ := filepath.Glob(filepath.Join(t.conf, "*.conf")) // of the host, and of its tags (man 5 lvm.conf)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return true // LVM is asked
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

// hostDevices returns which of LVM's two filters of devices the host has not set, and, if asked, whether
// LVM looks at logical volumes. What the host's filters hide, such as one of two paths to a disk, has to
// stay hidden. Patterns cannot be added to a filter that lets others pass, as a device has several names.
// No filter is returned if the host has set both; then the host's are to hide them (docs/block.md).
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
		if slices.Contains(lines, name+`=["a|.*|"]`) { // LVM's default
			filter = name
			break
		}
	}
	return filter, slices.Contains(lines, scanSetting+"=1"), nil
}

// rawVolumes are the patterns that hide the logical volumes which are raw block volumes, in groups that are
// not on logical volumes themselves. A group that is stays in sight: its devices have no tag of flexlvm's.
// What pods have written is not asked: LVM gets the patterns that hide their other devices, and does not
// look at logical volumes.
func (c *Client) rawVolumes(ctx context.Context, patterns []string, filter string) ([]string, error) {
	args := configured(rawVolumesArgs(), scanSetting+"=0", filterSetting(patterns, filter))
	out, err := c.run.CommandContext(ctx, "lvs", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("list raw block volumes, at which LVM must not look: %w", err)
	}
	r, err := parseReport(out)
	if err != nil {
		return nil, fmt.Errorf("list raw block volumes, at which LVM must not look: %w", err)
	}
	var all []string
	for _, rep := range r.Report {
		for _, f := range rep.LV {
			name := volume.DeviceName(volume.Group(f["vg_name"]), volume.Name(f["lv_name"]))
			// Of what names are made of, a plus is more than itself in a regular expression; so is a dot.
			all = append(all, "r|^"+filepath.Join(c.tenants.dev, "mapper", strings.ReplaceAll(name, "+", "."))+"$|")
		}
	}
	return all, nil
}

// hidden returns the arguments of a command that looks at no such device.
func hidden(args, patterns []string, filter string) []string {
	return configured(args, filterSetting(patterns, filter))
}

func filterSetting(patterns []string, filter string) string {
	if filter == "" || len(patterns) == 0 {
		return ""
	}
	return filter + `=["` + strings.Join(patterns, `","`) + `"]`
}

// configured returns the arguments of a command with settings of LVM's section of devices; empty ones
// count for nothing.
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
