package lvm

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// MinMetadataSize is the smallest metadata area of a group that flexlvm creates. LVM's default of 1
// MiB holds about 500 volumes and cannot be enlarged later.
const MinMetadataSize = 16 * volume.MiB

// MaxMetadataSize is more than any node's volumes need; a larger number is a mistake.
const MaxMetadataSize = volume.GiB

// ErrGroupExists: the host has a volume group of that name already.
var ErrGroupExists = errors.New("volume group exists")

// A NewGroup describes a volume group to create.
type NewGroup struct {
	Name         volume.Group
	Devices      []string
	MetadataSize volume.Bytes // MinMetadataSize to MaxMetadataSize
}

// Validate checks what can be checked without access to the host. The error is a
// *volume.FieldError; its fields are the flags of `flexlvm vg create`.
func (n NewGroup) Validate() error {
	switch {
	case n.Name == "":
		return &volume.FieldError{Field: "--name", Reason: "is empty"}
	case len(n.Devices) == 0:
		return &volume.FieldError{Field: "DEVICE", Reason: "is missing; name at least one block device"}
	case n.MetadataSize < MinMetadataSize:
		return &volume.FieldError{Field: "--metadata-size", Value: n.MetadataSize.String(), Reason: fmt.Sprintf("is less than %s; LVM cannot enlarge it later, and a small one holds few volumes", MinMetadataSize)}
	case n.MetadataSize > MaxMetadataSize:
		return &volume.FieldError{Field: "--metadata-size", Value: n.MetadataSize.String(), Reason: fmt.Sprintf("is more than %s", MaxMetadataSize)}
	}
	return nil
}

// Argv returns the command that creates the group. It has no --yes, and programs run by flexlvm
// have no terminal for a prompt: if LVM finds anything on a device after all, it gives up.
func (n NewGroup) Argv() []string {
	argv := []string{
		"vgcreate", "--metadatasize", bytesArg(n.MetadataSize),
		"--physicalextentsize", bytesArg(volume.DefaultExtent),
		"--", string(n.Name),
	}
	return append(argv, n.Devices...)
}

// CreateGroup creates a volume group on devices that pass CheckBlank. It checks them again itself,
// because creating a group overwrites their content. Killed at any instant, it leaves devices
// without a group (LVM may already see physical volumes, which `pvremove` clears), or the group.
func (c *Client) CreateGroup(ctx context.Context, n NewGroup) (VolumeGroup, error) {
	if err := n.Validate(); err != nil {
		return VolumeGroup{}, err
	}
	if err := c.CheckNewGroup(ctx, n); err != nil {
		return VolumeGroup{}, err
	}
	argv := n.Argv()
	if _, err := c.lvm(ctx, argv[0], argv[1:]...); err != nil {
		return VolumeGroup{}, fmt.Errorf("create volume group %s: %w", n.Name, err)
	}
	if err := c.syncAll(n.Devices); err != nil {
		return VolumeGroup{}, err
	}
	g, err := c.Group(ctx, n.Name)
	if err != nil {
		return VolumeGroup{}, err
	}
	if g.MetadataSize < MinMetadataSize {
		return g, fmt.Errorf("create volume group %s: its metadata area has %s and should have %s; remove the group and check lvm.conf", n.Name, g.MetadataSize, n.MetadataSize)
	}
	return g, nil
}

// CheckNewGroup fails unless the group can be created without losing anything.
func (c *Client) CheckNewGroup(ctx context.Context, n NewGroup) error {
	groups, err := c.Groups(ctx)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.Name == n.Name {
			return fmt.Errorf("%w: %s has %s on %s; choose another --name, or use it as it is", ErrGroupExists, g.Name, g.Size, volume.Pluralize(g.Devices, "device", "devices"))
		}
	}
	return CheckBlank(ctx, c.run, n.Devices, n.MetadataSize+minPool)
}

// minPool is room for one volume of the smallest size.
const minPool = 512 * volume.MiB
