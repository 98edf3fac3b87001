package lvm

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A PhysicalVolume is what LVM reports about a physical volume.
type PhysicalVolume struct {
	Path      string // empty if the device is missing
	UUID      string
	Group     volume.Group // empty if it is in none
	GroupUUID string
	GroupTags []string
	Missing   bool
}

// PhysicalVolumes returns every physical volume of the host, in a group or in none.
func (c *Client) PhysicalVolumes(ctx context.Context) ([]PhysicalVolume, error) {
	out, err := c.lvm(ctx, "pvs", reportArgs(physicalFields)...)
	if err != nil {
		return nil, fmt.Errorf("list physical volumes: %w", err)
	}
	all, err := parsePhysicalVolumes(out)
	if err != nil {
		return nil, fmt.Errorf("list physical volumes: %w", err)
	}
	return all, nil
}

const physicalFields = "pv_name,pv_uuid,pv_missing,vg_name,vg_uuid,vg_tags"

func parsePhysicalVolumes(out []byte) (all []PhysicalVolume, err error) {
	err = eachRow(out, deviceRows, func(r *row) {
		p := PhysicalVolume{
			Path: r.text("pv_name"), UUID: r.text("pv_uuid"),
			Group: volume.Group(r.field("vg_name")), GroupUUID: r.field("vg_uuid"), GroupTags: r.list("vg_tags"),
			Missing: r.field("pv_missing") != "",
		}
		if p.Missing {
			p.Path = "" // LVM writes [unknown]
		}
		all = append(all, p)
	})
	return all, err
}

// CheckBlankForGroup fails unless a group, or part of one, can be created on the device without
// losing anything, and no process has it open. It reads the device, which may hang, so it holds no
// lock meanwhile. One of flexlvm's own LVM commands, which scan all devices, may have it open then.
// Therefore the check for users, which queries the kernel and does not read the device, is repeated
// while none of them runs. A process that had the device open at first may have written to it, so
// read the device after this check.
func (c *Client) CheckBlankForGroup(ctx context.Context, device string) error {
	err := c.checkUnused(ctx, device)
	if errors.Is(err, ErrOpen) { // every other check has passed
		return c.Alone(ctx, func() error { return CheckNoUsers(device) })
	}
	return err
}

// CreatePhysicalVolume creates a physical volume with that UUID (NewPhysicalVolumeUUID) on a device
// that has passed CheckBlankForGroup and was read since. It checks the device again, and gives up
// if the device is open (ErrOpen), even in one of flexlvm's own commands: nothing would read it
// again after they have ended. Like vgcreate it runs without --yes: if LVM finds anything on the
// device after all, it gives up.
func (c *Client) CreatePhysicalVolume(ctx context.Context, device, uuid string) error {
	if err := c.checkUnused(ctx, device); err != nil {
		return err
	}
	args := []string{"--uuid", uuid, "--norestorefile", "--metadatasize", bytesArg(MinMetadataSize), "--", device}
	if _, err := c.lvm(ctx, "pvcreate", args...); err != nil {
		return fmt.Errorf("make a physical volume of %s: %w", device, err)
	}
	return c.syncAll([]string{device})
}

// CreateGroupOf creates a group with a tag from devices that CreatePhysicalVolume has prepared.
// Right before, the caller has checked that they still are these devices: vgcreate makes a physical
// volume of any other device (man 8 vgcreate).
func (c *Client) CreateGroupOf(ctx context.Context, g volume.Group, tag string, devices []string) (VolumeGroup, error) {
	args := append([]string{"--addtag", tag, "--physicalextentsize", bytesArg(volume.DefaultExtent), "--", string(g)}, devices...)
	if _, err := c.lvm(ctx, "vgcreate", args...); err != nil {
		return VolumeGroup{}, fmt.Errorf("create volume group %s: %w", g, err)
	}
	if err := c.syncAll(devices); err != nil {
		return VolumeGroup{}, err
	}
	return c.Group(ctx, g)
}

// ExtendGroup adds devices that CreatePhysicalVolume has prepared to the group with this UUID. The
// caller checks the devices as for CreateGroupOf.
func (c *Client) ExtendGroup(ctx context.Context, g volume.Group, uuid string, devices []string) error {
	now, err := c.Group(ctx, g)
	if err != nil {
		return err
	}
	if now.UUID != uuid {
		return fmt.Errorf("extend volume group %s: its UUID is %s and was %s; it is not touched", g, now.UUID, uuid)
	}
	if _, err := c.lvm(ctx, "vgextend", append([]string{"--", string(g)}, devices...)...); err != nil {
		return fmt.Errorf("extend volume group %s: %w", g, err)
	}
	return c.syncAll(devices)
}

// syncAll makes LVM's labels and metadata on devices survive a power cut (see Flush).
func (c *Client) syncAll(devices []string) error {
	for _, d := range devices {
		if err := c.sync(d); err != nil {
			return err
		}
	}
	return nil
}

// NewPhysicalVolumeUUID returns a random UUID in LVM's form: 32 letters and digits, in
// groups of 6, 4, 4, 4, 4, 4 and 6 (lvm2, lib/uuid/uuid.c).
func NewPhysicalVolumeUUID() (string, error) {
	const letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b [32]byte
	// Requests of up to 256 bytes are never cut short (man 2 getrandom).
	if _, err := unix.Getrandom(b[:], 0); err != nil {
		return "", fmt.Errorf("choose a UUID: %w", err)
	}
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	s := string(b[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s-%s-%s", s[:6], s[6:10], s[10:14], s[14:18], s[18:22], s[22:26], s[26:]), nil
}
