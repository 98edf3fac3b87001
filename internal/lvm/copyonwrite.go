package lvm

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrHasSnapshots: the volume has copy-on-write snapshots, and LVM does not resize such a volume (seen
// with 2.03.16: "Snapshot origin volumes can be resized only while inactive").
var ErrHasSnapshots = errors.New("has snapshots")

func cannotGrow(lv LogicalVolume) error {
	return fmt.Errorf("extend logical volume %s: it %w, and LVM extends no volume in use that has copy-on-write snapshots; delete its VolumeSnapshots, and those that are not flexlvm's (`lvs -o +lv_tags -S 'origin=%s' %s`), and it is retried", lv.path(), ErrHasSnapshots, lv.Name, lv.Group)
}

// CreateCopyOnWriteSnapshot creates lv, of its size, as a copy-on-write snapshot of the thick volume origin. LVM
// freezes a file system mounted from origin meanwhile. It writes its metadata twice: killed in
// between, it leaves an ordinary volume with lv's name and tags, which is not a snapshot
// (LogicalVolume.Origin). Otherwise it is like Create.
func (c *Client) CreateCopyOnWriteSnapshot(ctx context.Context, origin, lv LogicalVolume, chunk volume.Bytes) error {
	_, err := c.lvm(ctx, "lvcreate", copyOnWriteArgs(origin, lv, chunk)...)
	_, why := c.explainCreate(ctx, lv, err)
	if errors.Is(why, ErrExists) {
		// The existing volume may be what LVM has left of this attempt, and only LVM's error
		// explains why that failed.
		return fmt.Errorf("%w: %w", why, err)
	}
	return why
}

// CheckFree fails with ErrNoSpace unless a volume of this shape and size could be created in the
// group now.
func (c *Client) CheckFree(ctx context.Context, g volume.Group, h volume.Shape, size volume.Bytes) error {
	group, err := c.Group(ctx, g)
	if err != nil {
		return err
	}
	return c.shortOf(ctx, group, h, h.Share(size, group.Extent), nil)
}

// Split turns the store of a copy-on-write snapshot into an independent volume, which holds what
// was copied into it and on which nothing depends. Only then can it be wiped. It is idempotent.
func (c *Client) Split(ctx context.Context, lv LogicalVolume) (LogicalVolume, error) {
	if lv.Origin != "" {
		if _, err := c.lvm(ctx, "lvconvert", "--yes", "--splitsnapshot", "--", lv.path()); err != nil {
			return lv, fmt.Errorf("split snapshot %s from its source: %w", lv.path(), err)
		}
	}
	now, err := c.Volume(ctx, lv.Group, lv.Name)
	switch {
	case err != nil:
		return lv, err
	case now.UUID != lv.UUID || now.Origin != "":
		return lv, fmt.Errorf("split snapshot %s from its source: it has changed meanwhile; try again", lv.path())
	}
	return now, nil
}

// parseCopyOnWrite parses the fields of copy-on-write snapshots. Only these have that first letter of
// lv_attr, whereas thin snapshots have an origin, too.
func (lv *LogicalVolume) parseCopyOnWrite(row *row) {
	of, overflowed := row.field("origin"), row.isSet("lv_snapshot_invalid", "snapshot invalid")
	stored, told := row.share("snap_percent", lv.Size)
	if !strings.ContainsAny(row.text("lv_attr")[:1], "sS") {
		return
	}
	if of == "" && row.err == nil {
		row.err = fmt.Errorf("read LVM's report: %s is a snapshot without an origin in the report", lv.path())
	}
	lv.Origin, lv.Overflowed = volume.Name(of), overflowed
	if told {
		lv.Stored = stored
	}
}
