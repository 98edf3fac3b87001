package lvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
func hidden(args, patterns []string, filter string) []string {
	if filter == "" {
		return args
	}
	config := "devices{" + filter + `=["` + strings.Join(patterns, `","`) + `"]}`
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
