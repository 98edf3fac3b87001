package lvm

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Flush makes what LVM has changed in a group last over a power cut. LVM writes its
// metadata past the page cache and leaves it in the cache of the disk (seen with
// 2.03.16 on dm-log-writes): a volume that was released could be ready again, and
// nobody would release it once more.
//
// Every disk of a group holds the metadata, and LVM goes by the newest after a boot, so
// the disks of one volume will do: its device passes the flush on. Where it has none, or
// fails, as in a thin pool whose metadata is full, one disk of the group is enough.
//
// What makes or extends a volume needs no Flush: the file system that comes next on it
// flushes the same disks before anybody is told.
func (c *Client) Flush(ctx context.Context, g volume.Group, n volume.Name) error {
	if d, err := FindDevice(g, n); err == nil && c.sync(d.Path) == nil {
		return nil
	}
	out, err := c.lvm(ctx, "pvs", devicesArgs(g)...)
	if err != nil {
		return fmt.Errorf("list the devices of volume group %s: %w", g, err)
	}
	present, err := parsePresent(out)
	if err != nil {
		return err
	}
	failures := []error{fmt.Errorf("flush volume group %s: its change may not last over a power cut; see `pvs`", g)}
	for _, device := range present {
		if err := c.sync(device); err != nil {
			failures = append(failures, err)
		}
	}
	if len(failures) > len(present) { // none has succeeded
		return errors.Join(failures...)
	}
	return nil
}

// syncDevice makes a disk write down what is in its cache. It writes nothing itself.
func syncDevice(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open device: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("flush device: %w", err)
	}
	return nil
}
