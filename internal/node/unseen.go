package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// UnseenGroupsOf returns the volume groups that LVM does not show now and in which this node has had a volume of that
// name. The volume may be intact: the disks of a group may be late, or hidden by LVM's devices file.
func (e *Engine) UnseenGroupsOf(ctx context.Context, n volume.Name) (unseen []volume.Group, err error) {
	seen, err := e.lvm.Groups(ctx)
	if err != nil {
		return nil, err
	}
	recorded, err := os.ReadDir(string(e.records))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the records of this node: %w", err)
	}
	for _, entry := range recorded {
		g := volume.Group(entry.Name())
		if slices.ContainsFunc(seen, func(s lvm.VolumeGroup) bool { return s.Name == g }) {
			continue
		}
		had, err := e.records.exists(g, n)
		if err != nil {
			return nil, fmt.Errorf("look up the record of %s/%s: %w", g, n, err)
		}
		if r, err := e.records.read(g, n); had && (err != nil || r.State != volume.Doomed) { // no tombstone
			unseen = append(unseen, g)
		}
	}
	return unseen, nil
}
