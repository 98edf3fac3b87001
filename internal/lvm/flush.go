package lvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Flush makes LVM's changes in a group survive a power cut. LVM writes its metadata past the page
// cache, but leaves it in the disk's cache (seen with 2.03.16 on dm-log-writes): without a flush, a
// released volume could become ready again, and would never be released a second time.
//
// Every disk of a group holds the metadata, unless a person has changed that (see
// VolumeGroup.DevicesWithoutMetadata), and after a boot LVM uses the newest copy, so the disks of one
// volume are enough: its device passes the flush on. If the volume has no device, or the device is
// suspended or fails, as in a thin pool with full metadata, one disk that holds the metadata is
// enough.
//
// Creating or extending a volume flushes nothing: the file system that is then created or grown on
// it flushes the same disks before the call succeeds. A caller that records the change on another
// disk before that must call Flush first.
func (c *Client) Flush(ctx context.Context, g volume.Group, n volume.Name) error {
	if d, err := FindDevice(g, n); err == nil && d.CheckResumed() == nil && c.sync(d.Path) == nil {
		return nil
	}
	out, err := c.lvm(ctx, "pvs", metadataDevicesArgs(g)...)
	if err != nil {
		return fmt.Errorf("list the devices of volume group %s: %w", g, err)
	}
	holders, err := parseMetadataDevices(out)
	if err != nil {
		return err
	}
	failures := []error{fmt.Errorf("flush volume group %s: its change may not last over a power cut; see `pvs`", g)}
	for _, device := range holders {
		if err := c.sync(device); err != nil {
			failures = append(failures, err)
		}
	}
	if len(failures) > len(holders) { // none has succeeded
		return errors.Join(failures...)
	}
	return nil
}

// parseMetadataDevices returns the devices that are present and hold the group's metadata, including those that are not
// allocatable.
func parseMetadataDevices(out []byte) ([]string, error) {
	var all []string
	err := eachRow(out, deviceRows, func(r *row) {
		name, missing, copies := r.text("pv_name"), r.field("pv_missing") != "", r.number("pv_mda_used_count")
		if !missing && copies > 0 {
			all = append(all, name)
		}
	})
	return all, err
}
