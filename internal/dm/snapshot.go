package dm

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/utils/exec"
)

// Fills returns how full the stores of all copy-on-write snapshots of this host are, in percent, by
// the names of their mappings. An overflowed store is full. It does not wait for LVM commands.
// dmsetup queries every mapping, whatever its target. Without --noflush (since 1.02.76), each thin
// pool of the host would therefore commit its metadata.
func Fills(ctx context.Context, run exec.Interface) (map[string]int, error) {
	out, err := run.CommandContext(ctx, "dmsetup", "status", "--noflush", "--target", "snapshot").Output()
	if err != nil {
		return nil, fmt.Errorf("see how full snapshots are: %w", err)
	}
	fills := map[string]int{}
	for line := range strings.Lines(string(out)) {
		// NAME: START LENGTH snapshot USED/ALL METADATA, in sectors, or words instead of the last
		// two.
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[3] != "snapshot" {
			continue
		}
		name := strings.TrimSuffix(fields[0], ":")
		if fields[4] == "Invalid" || fields[4] == "Overflow" {
			fills[name] = 100
		}
		if len(fields) != 6 || fields[4] == "Merge" {
			continue
		}
		used, all, _ := strings.Cut(fields[4], "/")
		filled, filledErr := strconv.ParseInt(used, 10, 64)
		capacity, capacityErr := strconv.ParseInt(all, 10, 64)
		if filledErr != nil || capacityErr != nil || filled < 0 || capacity <= 0 || filled > capacity {
			return nil, fmt.Errorf("see how full snapshots are: dmsetup says %q, which this release does not know", strings.TrimSpace(line))
		}
		fills[name] = int(filled * 100 / capacity)
	}
	return fills, nil
}
