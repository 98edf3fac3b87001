package lvm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
)

// Where a pod has a raw block volume, it may write there what LVM takes for a physical volume: of
// a group with the name of one of flexlvm's, and volumes with its tags. LVM does not look at
// logical volumes (devices/scan_lvs), but at their mappings, and at the loop devices that kubelet
// makes of these. So flexlvm's own commands do not see them.

// tenants finds the devices whose content is a pod's.
type tenants struct {
	dev, sys string
	// backing returns the number of the block device that a loop device is made of.
	backing func(loop string) (uint64, error)
}

func hostTenants() tenants { return tenants{dev: "/dev", sys: "/sys", backing: loopBacking} }

// devices returns their paths. It is called before every command, and costs next to nothing where
// there are none.
func (t tenants) devices() []string {
	entries, err := os.ReadDir(filepath.Join(t.dev, "mapper"))
	if err != nil {
		return nil // then there are no mappings
	}
	var paths []string
	var numbers []uint64
	for _, e := range entries {
		if !dm.IsBlockName(e.Name()) {
			continue
		}
		path := filepath.Join(t.dev, "mapper", e.Name())
		paths = append(paths, path)
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			numbers = append(numbers, st.Rdev)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	loops, err := filepath.Glob(filepath.Join(t.sys, "block/loop*/loop"))
	if err != nil {
		return paths
	}
	for _, dir := range loops {
		loop := filepath.Join(t.dev, filepath.Base(filepath.Dir(dir)))
		if number, err := t.backing(loop); err == nil && slices.Contains(numbers, number) {
			paths = append(paths, loop)
		}
	}
	return paths
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

// freeFilter returns which of LVM's two filters of devices the host has not set: what it hides,
// such as one of two paths to a disk, has to stay hidden. Patterns cannot be added to a filter
// that lets others pass, as a device has several names. It is empty if the host has set both; then
// the host's are to hide them (docs/block.md).
func (c *Client) freeFilter(ctx context.Context) (string, error) {
	out, err := c.run.CommandContext(ctx, "lvm", "lvmconfig", "--typeconfig", "full", "devices/filter", "devices/global_filter").Output()
	if err != nil {
		return "", fmt.Errorf("read the host's LVM filters: %w", err)
	}
	lines := strings.Fields(string(out))
	for _, filter := range []string{"filter", "global_filter"} {
		if slices.Contains(lines, filter+`=["a|.*|"]`) { // LVM's default
			return filter, nil
		}
	}
	return "", nil
}

// hidden returns the arguments of a command that looks at no such device.
func hidden(args, devices []string, filter string) []string {
	if filter == "" {
		return args
	}
	var patterns []string
	for _, d := range devices {
		patterns = append(patterns, `"r|^`+d+`$|"`)
	}
	config := "devices{" + filter + "=[" + strings.Join(patterns, ",") + "]}"
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
