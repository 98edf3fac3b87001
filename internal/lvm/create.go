package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Create creates an active logical volume with lv's group, name, size, shape and tags, and wipes
// old signatures. If the name is taken, it fails with ErrExists and changes nothing, so the caller
// need not check first. Killed at any instant, it leaves either nothing or the volume with all its
// tags: LVM commits both in one write of its metadata.
func (c *Client) Create(ctx context.Context, lv LogicalVolume) error {
	create := func() (roomy bool, err error) {
		on, err := c.place(ctx, lv)
		if err == nil {
			_, err = c.lvm(ctx, "lvcreate", createArgs(lv, on)...)
		}
		return c.explainCreate(ctx, lv, err)
	}
	return retryOnce(create)
}

// retryOnce retries once if try failed but the group now has room: another volume may have been removed
// in between. Without the retry, the lack of room would not be reported as ErrNoSpace, on which
// callers that wait for room rely. A failed LVM command changes nothing, so the retry is safe.
func retryOnce(try func() (roomy bool, err error)) error {
	roomy, err := try()
	if roomy {
		_, err = try()
	}
	return err
}

// CreateThinSnapshot creates a logical volume with lv's name and tags, and with the size and the current
// content of the thin volume origin. LVM freezes a file system mounted from origin meanwhile.
// Otherwise it is like Create.
func (c *Client) CreateThinSnapshot(ctx context.Context, origin, lv LogicalVolume) error {
	_, err := c.place(ctx, lv)
	if err == nil {
		_, err = c.lvm(ctx, "lvcreate", snapshotArgs(origin, lv)...)
	}
	_, err = c.explainCreate(ctx, lv, err)
	return err
}

// explainCreate determines the reason for a failure from LVM's actual state, and returns nil if err is
// nil. It also reports whether the group has room for the volume.
func (c *Client) explainCreate(ctx context.Context, lv LogicalVolume, err error) (roomy bool, why error) {
	if err == nil {
		return false, nil
	}
	var exit exec.ExitError
	if !errors.As(err, &exit) && !errors.Is(err, errNoPlace) && !errors.Is(err, errPool) {
		return false, fmt.Errorf("create logical volume %s: %w", lv.path(), err)
	}
	group, gerr := c.Group(ctx, lv.Group)
	if gerr != nil {
		return false, gerr
	}
	if _, verr := c.Volume(ctx, lv.Group, lv.Name); verr == nil {
		return false, fmt.Errorf("%w: %s", ErrExists, lv.path())
	}
	if errors.Is(err, errPool) {
		return false, err
	}
	if short := c.shortOf(ctx, group, lv.Shape, lv.Shape.Share(lv.Size, group.Extent), nil); short != nil {
		return false, short
	}
	return lv.Shape.Layout != volume.Thin, fmt.Errorf("create logical volume %s: %w", lv.path(), err)
}

// errNoPlace: too few devices have room for the copies of a volume.
var errNoPlace = errors.New("no place")

// place chooses the devices of a volume that has copies: those with the most room. On its own, LVM
// may put pieces of two copies on one device if there is no other way, or if devices are
// fragmented, and the loss of that device would lose both copies. It returns none where LVM
// chooses.
func (c *Client) place(ctx context.Context, lv LogicalVolume) ([]string, error) {
	if lv.Shape.Layout == volume.Thin {
		return nil, c.fitPool(ctx, lv, 1)
	}
	if lv.Shape.Layout != volume.Raid1 {
		return nil, nil
	}
	devices, err := c.devices(ctx, lv.Group)
	if err != nil {
		return nil, err
	}
	n := lv.Shape.Devices()
	if len(devices) < n || devices[n-1].free < lv.Size {
		return nil, errNoPlace
	}
	var on []string
	for _, d := range devices[:n] {
		on = append(on, d.name)
	}
	return on, nil
}

// devices returns the devices of a group from which LVM may allocate, the one with the most room
// first.
func (c *Client) devices(ctx context.Context, g volume.Group) ([]device, error) {
	out, err := c.lvm(ctx, "pvs", devicesArgs(g)...)
	if err != nil {
		return nil, fmt.Errorf("list the devices of volume group %s: %w", g, err)
	}
	r, err := parseReport(out)
	if err != nil {
		return nil, err
	}
	var all []device
	for _, rep := range r.Report {
		found, err := parseDevices(rep.PV)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// Extend grows a volume to at least size, keeping its shape; a volume that is large enough is left
// alone. The error is ErrNoSpace if there is too little room, and ErrHasSnapshots if the volume has
// copy-on-write snapshots.
func (c *Client) Extend(ctx context.Context, lv LogicalVolume, size volume.Bytes) error {
	if lv.Size >= size {
		return nil
	}
	if lv.HasSnapshots {
		return cannotGrow(lv)
	}
	return retryOnce(func() (roomy bool, err error) { return c.extend(ctx, lv, size) })
}

func (c *Client) extend(ctx context.Context, lv LogicalVolume, size volume.Bytes) (roomy bool, err error) {
	on, err := c.copyDevices(ctx, lv)
	if err == nil && lv.Shape.Layout == volume.Thin {
		err = c.fitPool(ctx, lv, size-lv.Size)
	}
	if err == nil {
		_, err = c.lvm(ctx, "lvextend", extendArgs(lv, size, on)...)
	}
	if err == nil {
		return false, nil
	}
	var exit exec.ExitError
	if errors.As(err, &exit) {
		if now, verr := c.Volume(ctx, lv.Group, lv.Name); verr == nil && now.Size >= size {
			return false, nil
		}
		if group, gerr := c.Group(ctx, lv.Group); gerr == nil {
			share := lv.Shape.Share(size, group.Extent) - lv.Shape.Share(lv.Size, group.Extent)
			if short := c.shortOf(ctx, group, lv.Shape, share, on); short != nil {
				return false, short
			}
			roomy = lv.Shape.Layout != volume.Thin
		}
	}
	return roomy, fmt.Errorf("extend logical volume %s: %w", lv.path(), err)
}

// copyDevices returns the devices that hold the copies of a volume, on which these must grow: if one of
// the devices is full, LVM on its own puts the end of its copy on the device of another copy (seen
// with 2.03.16), and the loss of that device would lose both. It returns none where LVM chooses.
func (c *Client) copyDevices(ctx context.Context, lv LogicalVolume) ([]string, error) {
	if lv.Shape.Layout != volume.Raid1 {
		return nil, nil
	}
	out, err := c.lvm(ctx, "lvs", copiesArgs(lv)...)
	if err != nil {
		return nil, fmt.Errorf("look up the devices of logical volume %s: %w", lv.path(), err)
	}
	on, err := parseCopies(out)
	if err == nil && len(on) < lv.Shape.Devices() {
		err = fmt.Errorf("extend logical volume %s: its %d copies lie on %s (%s); see `lvs -a -o +devices %s`", lv.path(), lv.Shape.Devices(), volume.Pluralize(len(on), "device", "devices"), strings.Join(on, ", "), lv.Group)
	}
	return on, err
}

// shortOf explains a failure of LVM. It returns ErrExported if the group is exported, ErrPartial if
// devices of it are missing, ErrNoSpace if its devices, or those in on, cannot each provide such a
// share, and nil if the reason is another.
func (c *Client) shortOf(ctx context.Context, g VolumeGroup, h volume.Shape, share volume.Bytes, on []string) error {
	if g.Exported {
		return exported(g.Name)
	}
	if g.Missing > 0 {
		return fmt.Errorf("%w: %s lacks %d of its %s, and LVM makes and grows nothing in it until they are back; bring them back, or give them up as docs/disk-loss.md#the-disk-is-dead describes, which may lose volumes", ErrPartial, g.Name, g.Missing, volume.Pluralize(g.Devices, "device", "devices"))
	}
	if h.Layout == volume.Thin {
		return nil // it takes nothing from its group
	}
	n := h.Devices()
	if need := share * volume.Bytes(n); g.Free < need {
		return noSpace(g, need)
	}
	if n == 1 {
		return nil
	}
	devices, err := c.devices(ctx, g.Name)
	if err != nil {
		return err
	}
	if len(on) > 0 {
		devices = slices.DeleteFunc(devices, func(d device) bool { return !slices.Contains(on, d.name) })
	}
	if len(devices) < n || devices[n-1].free < share {
		return tooFewDevices(g, h, devices, share, on)
	}
	return nil
}

func noSpace(g VolumeGroup, need volume.Bytes) error {
	return fmt.Errorf("%w: %s has %d bytes free (%s) of %d and %d are needed (%s)", ErrNoSpace, g.Name, int64(g.Free), g.Free, int64(g.Size), int64(need), need)
}

// tooFewDevices returns the error about a group that has enough room, but on too few devices.
func tooFewDevices(g VolumeGroup, h volume.Shape, devices []device, share volume.Bytes, on []string) error {
	what, fewer := fmt.Sprintf("a volume striped over %d devices", h.Stripes), "stripes"
	if h.Layout == volume.Raid1 {
		what, fewer = fmt.Sprintf("a volume in %d copies", h.Mirrors+1), "mirrors"
	}
	remedy := "add devices with `vgextend --metadatasize 16m`, or use a class with fewer " + fewer
	if len(on) > 0 {
		remedy = "its copies grow only where they lie: make room there, with `pvmove` for one"
	}
	wide := 0
	texts := make([]string, 0, len(devices))
	for _, d := range devices {
		texts = append(texts, d.name+" "+d.free.String())
		if d.free >= share {
			wide++
		}
	}
	return fmt.Errorf("%w: %s needs %d bytes (%s) on each of %d devices of %s, and %d of %d have that (free: %s); %s",
		ErrNoSpace, what, int64(share), share, h.Devices(), g.Name, wide, len(devices), strings.Join(texts, ", "), remedy)
}
