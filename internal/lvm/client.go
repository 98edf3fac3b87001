// Package lvm runs the host's LVM: one method per command, typed reports, and no policy. After a
// failure it queries LVM for the actual state instead of parsing its messages: exit codes are
// categories (5 is "failed") and messages change from release to release.
package lvm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/durable"
	"github.com/flexlvm/flexlvm/internal/lock"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Errors that callers may test for with errors.Is.
var (
	// ErrNoGroup: LVM does not see the volume group.
	ErrNoGroup = errors.New("volume group not found")
	// ErrPartial: devices of the volume group are missing, so volumes that LVM does not show may
	// still exist.
	ErrPartial = errors.New("volume group is not whole")
	// ErrExported: the volume group is exported (VolumeGroup.Exported).
	ErrExported = errors.New("volume group is exported")
	// ErrNoVolume: LVM sees the complete group, and the volume is not in it.
	ErrNoVolume = errors.New("logical volume not found")
	// ErrExists: the group already holds a volume of that name.
	ErrExists = errors.New("logical volume exists")
	// ErrNoSpace: too little is free in the group, on its devices or in the thin pool.
	ErrNoSpace = errors.New("not enough free space")
)

// lockFile serialises flexlvm's LVM commands: LVM's locks guard its metadata, but several commands
// at the same time have been seen to wait for each other forever (lvm2 issue 23).
const lockFile = "lvm.lock"

// A Client runs LVM commands.
type Client struct {
	run   exec.Interface
	locks lock.Dir
	sync  func(device string) error // flushes the device's disk
	// unused is checkUnused for a device that is to become a physical volume, except in tests.
	unused func(ctx context.Context, device string) error
	reads  *disk.Reads // of unused
	// tenants finds the devices to hide from LVM.
	tenants tenants
}

// New returns a client that runs commands with run, one at a time on this node. run must
// not kill them.
func New(run exec.Interface, locks lock.Dir) *Client {
	unused := func(ctx context.Context, device string) error {
		return checkUnused(ctx, run, device, MinMetadataSize+minPool)
	}
	return &Client{run: run, locks: locks, sync: func(device string) error { return durable.Sync(device) }, unused: unused, reads: disk.NewReads(disk.ReadTime), tenants: hostTenants()}
}

// checkUnused calls c.unused, which reads the device, within disk.ReadTime.
func (c *Client) checkUnused(ctx context.Context, device string) error {
	return c.reads.Check(ctx, device, func(ctx context.Context) error { return c.unused(ctx, device) })
}

func (c *Client) lvm(ctx context.Context, name string, args ...string) ([]byte, error) {
	var out []byte
	err := c.Alone(ctx, func() (err error) {
		if name != "dmsetup" { // which scans no devices
			if args, err = c.withoutTenants(ctx, args); err != nil {
				return err
			}
		}
		out, err = c.run.CommandContext(ctx, name, args...).Output()
		return err
	})
	return out, err
}

// Alone runs f, which must not call the client, while no LVM command of flexlvm runs.
func (c *Client) Alone(ctx context.Context, f func() error) error {
	release, err := c.locks.Acquire(ctx, lockFile, "lvm")
	if err != nil {
		return err
	}
	defer release()
	return f()
}

// Group returns one volume group, or ErrNoGroup.
func (c *Client) Group(ctx context.Context, g volume.Group) (VolumeGroup, error) {
	all, err := c.groups(ctx, groupsArgs(g))
	if err != nil {
		return VolumeGroup{}, fmt.Errorf("look up volume group %s: %w", g, err)
	}
	if len(all) == 0 {
		return VolumeGroup{}, fmt.Errorf("%w: %s; if it was there, bring its disks back (`flexlvm doctor --group %[2]s` shows whether LVM's devices file hides them); otherwise create it with `flexlvm vg create --name %[2]s DEVICE`", ErrNoGroup, g)
	}
	if len(all) > 1 {
		return VolumeGroup{}, fmt.Errorf("look up volume group %s: this host has %d groups of that name (%s, %s); give one another name with `vgrename UUID NAME`", g, len(all), all[0].UUID, all[1].UUID)
	}
	return all[0], nil
}

// Groups returns every volume group of the host.
func (c *Client) Groups(ctx context.Context) ([]VolumeGroup, error) {
	all, err := c.groups(ctx, groupsArgs(""))
	if err != nil {
		return nil, fmt.Errorf("list volume groups: %w", err)
	}
	return all, nil
}

func (c *Client) groups(ctx context.Context, args []string) ([]VolumeGroup, error) {
	out, err := c.lvm(ctx, "vgs", args...)
	if err != nil {
		return nil, err
	}
	return parseGroups(out)
}

// Volume returns one logical volume of a group, flexlvm's or not. ErrNoVolume means that
// LVM sees the group with all its devices and no such volume, ErrPartial that devices are
// missing, ErrNoGroup that the group is missing, and ErrExported that it is exported.
func (c *Client) Volume(ctx context.Context, g volume.Group, n volume.Name) (LogicalVolume, error) {
	out, err := c.lvm(ctx, "lvs", volumeArgs(g, n)...)
	if err != nil {
		return LogicalVolume{}, c.explainLookup(ctx, g, err)
	}
	all, err := parseVolumes(out)
	if err != nil {
		return LogicalVolume{}, fmt.Errorf("look up logical volume %s/%s: %w", g, n, err)
	}
	if len(all) > 0 {
		return all[0], nil
	}
	group, err := c.Group(ctx, g)
	switch {
	case err != nil:
		return LogicalVolume{}, err
	case group.Missing > 0:
		return LogicalVolume{}, partialErr(group, n)
	}
	return LogicalVolume{}, fmt.Errorf("%w: %s/%s", ErrNoVolume, g, n)
}

// partialErr returns the error for a volume that LVM does not show in a group with missing devices.
func partialErr(g VolumeGroup, n volume.Name) error {
	return fmt.Errorf("%w: %s: %d of its %s are missing, so it is unknown whether it holds %s", ErrPartial, g.Name, g.Missing, volume.Pluralize(g.Devices, "device", "devices"), n)
}

func (c *Client) explainLookup(ctx context.Context, g volume.Group, err error) error {
	var exit exec.ExitError
	if errors.As(err, &exit) {
		group, gerr := c.Group(ctx, g)
		switch {
		case errors.Is(gerr, ErrNoGroup):
			return gerr
		case group.Exported:
			return exported(g)
		}
	}
	return fmt.Errorf("look up logical volumes of %s: %w", g, err)
}

func exported(g volume.Group) error {
	return fmt.Errorf("%w: %s; LVM activates and changes nothing in it until `vgimport %s`", ErrExported, g, g)
}

// Volumes returns all logical volumes that have flexlvm's tag, in every group of the host.
func (c *Client) Volumes(ctx context.Context) ([]LogicalVolume, error) {
	out, err := c.lvm(ctx, "lvs", volumesArgs()...)
	if err != nil {
		return nil, fmt.Errorf("list logical volumes: %w", err)
	}
	all, err := parseVolumes(out)
	return volumesAlone(all), err
}

// Unfinished reports whether LVM was interrupted while it created a mirror, by a power cut or
// because it was killed, so that no pod can have used the mirror. Until LVM has wiped the mirror's
// own metadata and committed that, it shows this metadata as volumes, with the mirror's tags, and
// does not activate the mirror (_lv_extend_layered_lv in lvm2's lib/metadata/lv_manip.c).
func (c *Client) Unfinished(ctx context.Context, lv LogicalVolume) (bool, error) {
	if lv.Shape.Layout != volume.Raid1 || !lv.Skipped || lv.Active {
		return false, nil
	}
	metadata, err := c.Volume(ctx, lv.Group, lv.Name+"_rmeta_0")
	if errors.Is(err, ErrNoVolume) {
		return false, nil
	}
	return err == nil && metadata.metadata(), err
}

// volumesAlone drops flexlvm's thin pools, and the metadata of an unfinished mirror: they have
// flexlvm's tag but are not volumes.
func volumesAlone(all []LogicalVolume) []LogicalVolume {
	return slices.DeleteFunc(all, func(lv LogicalVolume) bool { return lv.metadata() || lv.Pool && volume.OwnedPool(lv.Tags) })
}

// An Overview is what LVM reports at one moment.
type Overview struct {
	Groups    []VolumeGroup   // of the host
	ThinPools []ThinPool      // flexlvm's
	Volumes   []LogicalVolume // that have flexlvm's tag
}

// Everything returns all volume groups of the host, and all thin pools and logical volumes that
// have flexlvm's tags, in one report.
func (c *Client) Everything(ctx context.Context) (o Overview, err error) {
	out, err := c.lvm(ctx, "lvm", fullReportArgs(seenSelection)...)
	if err != nil {
		return Overview{}, fmt.Errorf("list volume groups and logical volumes: %w", err)
	}
	if o.Groups, err = parseGroups(out); err != nil {
		return Overview{}, err
	}
	if o.ThinPools, err = parseThinPools(out); err != nil {
		return Overview{}, err
	}
	all, err := parseVolumes(out)
	if err != nil {
		return Overview{}, err
	}
	o.Volumes = volumesAlone(countOthers(o.ThinPools, all))
	return o, nil
}

// Activate activates the volume, so that its device appears. LVM activates a raid1 volume even if only
// one of its copies is present, unless activation_mode in the host's lvm.conf forbids it. Activate is
// idempotent.
func (c *Client) Activate(ctx context.Context, lv LogicalVolume) error {
	return c.activate(ctx, lv, "--yes", "--activate", "y")
}

// ActivateComplete is Activate, except that it fails if a device of the volume is missing. Devices that only
// other volumes of the group use do not matter.
func (c *Client) ActivateComplete(ctx context.Context, lv LogicalVolume) error {
	return c.activate(ctx, lv, "--yes", "--activationmode", "complete", "--activate", "y")
}

func (c *Client) activate(ctx context.Context, lv LogicalVolume, options ...string) error {
	if _, err := c.lvm(ctx, "lvchange", append(options, "--", lv.path())...); err != nil {
		return fmt.Errorf("activate logical volume %s: %w", lv.path(), err)
	}
	return nil
}

// MakeNode creates the missing node in /dev of an active volume. It is idempotent.
func (c *Client) MakeNode(ctx context.Context, lv LogicalVolume) error {
	if _, err := c.lvm(ctx, "vgmknodes", "--", lv.path()); err != nil {
		return fmt.Errorf("make the device node of logical volume %s: %w", lv.path(), err)
	}
	return nil
}

// Retag removes and adds tags in one write of LVM's metadata and makes it durable (Flush). The
// volume must have lv's UUID and the tags to be removed. It is idempotent.
func (c *Client) Retag(ctx context.Context, lv LogicalVolume, del, add []string) error {
	out, err := c.lvm(ctx, "lvchange", retagArgs(lv, del, add)...)
	if err != nil {
		return fmt.Errorf("tag logical volume %s: %w", lv.path(), err)
	}
	if len(out) > 0 {
		return c.Flush(ctx, lv.Group, lv.Name)
	}
	// LVM printed nothing: either it is configured to be silent, or it found no such volume, which
	// it does not treat as a failure.
	now, err := c.Volume(ctx, lv.Group, lv.Name)
	if err != nil {
		return fmt.Errorf("tag logical volume %s: %w", lv.path(), err)
	}
	missing := slices.ContainsFunc(add, func(t string) bool { return !slices.Contains(now.Tags, t) })
	left := slices.ContainsFunc(del, func(t string) bool { return slices.Contains(now.Tags, t) })
	if now.UUID != lv.UUID || missing || left {
		return fmt.Errorf("tag logical volume %s: it has changed meanwhile; try again", lv.path())
	}
	return c.Flush(ctx, lv.Group, lv.Name)
}

// Rename renames the volume, in one write of LVM's metadata, and makes it durable
// (Flush).
func (c *Client) Rename(ctx context.Context, lv LogicalVolume, to volume.Name) error {
	if err := c.runWithSnapshotRepair(ctx, lv, "lvrename", "--", string(lv.Group), string(lv.Name), string(to)); err != nil {
		return fmt.Errorf("rename logical volume %s to %s: %w", lv.path(), to, err)
	}
	return c.Flush(ctx, lv.Group, to)
}

// Remove removes the volume only if it has this name, this UUID, flexlvm's tag and no snapshots.
// LVM itself selects it, so another volume that has taken the name meanwhile is safe, and so are
// snapshots, which LVM would remove together with it. LVM refuses a volume whose device is open.
// Remove succeeds only if LVM, queried again, shows that the volume is gone.
func (c *Client) Remove(ctx context.Context, lv LogicalVolume) error {
	if err := c.runWithSnapshotRepair(ctx, lv, "lvremove", removeArgs(lv)...); err != nil {
		return fmt.Errorf("remove logical volume %s: %w", lv.path(), err)
	}
	now, err := c.Volume(ctx, lv.Group, lv.Name)
	switch {
	case errors.Is(err, ErrNoVolume) && lv.Shape.Layout == volume.Thin:
		// Without this, LVM may find its request that the pool delete the volume again after a
		// power cut, and discard the next such request unread, whose volume then stays in the pool.
		return c.Flush(ctx, lv.Group, lv.Name)
	case errors.Is(err, ErrNoVolume):
		return nil
	case err != nil:
		return fmt.Errorf("remove logical volume %s: cannot tell whether it is gone: %w", lv.path(), err)
	case now.UUID == lv.UUID && now.HasSnapshots:
		return fmt.Errorf("remove logical volume %s: it has snapshots by now, which would be removed with it; delete its VolumeSnapshots, and remove those that are not flexlvm's (`lvs -o +lv_tags -S 'origin=%s' %s`)", lv.path(), lv.Name, lv.Group)
	case now.UUID == lv.UUID:
		return fmt.Errorf("remove logical volume %s: it is still there and LVM gave no reason", lv.path())
	}
	return nil
}

func bytesArg(b volume.Bytes) string { return strconv.FormatInt(int64(b), 10) + "b" }
