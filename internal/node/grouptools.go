package node

import (
	"context"
	"errors"

	"github.com/flexlvm/flexlvm/internal/disk"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/internal/volumegroup"
)

// hostTools implements groupTools on this host.
type hostTools struct{ *Engine }

func (h hostTools) disks() ([]volumegroup.Disk, error) {
	found, err := disk.OnHost().List()
	if err != nil {
		return nil, err
	}
	all := make([]volumegroup.Disk, 0, len(found))
	for _, d := range found {
		all = append(all, volumegroup.Disk{
			ID: d.ID, Path: d.Path, Links: d.Links, Size: d.Size,
			Rotational: d.Rotational, Removable: d.Removable, Remote: d.Remote,
		})
	}
	for _, l := range h.attachedLoops() {
		all = append(all, volumegroup.Disk{ID: l.ID, Path: l.Device, Size: l.Size, Loop: l.Path})
	}
	return all, nil
}

// physicalVolumes identifies the disks by their device numbers, because LVM may use any of a device's names.
func (h hostTools) physicalVolumes(ctx context.Context) ([]volumegroup.PhysicalVolume, error) {
	found, err := h.lvm.PhysicalVolumes(ctx)
	if err != nil {
		return nil, err
	}
	disks, err := disk.OnHost().List()
	if err != nil {
		return nil, err
	}
	loops := h.attachedLoops()
	type named struct{ id, path string }
	byNumber := make(map[uint64]named, len(disks)+len(loops))
	for _, d := range disks {
		byNumber[d.Number] = named{d.ID, d.Path}
	}
	for _, l := range loops {
		byNumber[l.Number] = named{l.ID, l.Device}
	}
	all := make([]volumegroup.PhysicalVolume, 0, len(found))
	for _, p := range found {
		pv := volumegroup.PhysicalVolume{UUID: p.UUID, Path: p.Path, Group: p.Group, GroupUUID: p.GroupUUID, Tags: p.GroupTags, Missing: p.Missing}
		if !p.Missing {
			number, err := disk.NumberOf(p.Path)
			if err != nil {
				return nil, err
			}
			if d, is := byNumber[number]; is {
				pv.Disk, pv.Path = d.id, d.path
			}
		}
		all = append(all, pv)
	}
	return all, nil
}

// checkBlank is stricter than the check of `flexlvm vg create`, for which a person has named the device: the
// device must not be open anywhere, and must read as zeros.
func (h hostTools) checkBlank(ctx context.Context, device string) error {
	err := h.lvm.CheckBlankForGroup(ctx, device)
	if err != nil && !errors.Is(err, lvm.ErrOpen) {
		return err
	}
	if zeroErr := disk.CheckZeroSamples(device); zeroErr != nil {
		return zeroErr // permanent, unlike lvm.ErrOpen
	}
	return err
}

func (h hostTools) makeLoop(ctx context.Context, want volumegroup.Loop) error {
	_, err := h.ensureLoop(ctx, want)
	return err
}

func (h hostTools) createPhysicalVolume(ctx context.Context, device, uuid string) error {
	return h.lvm.CreatePhysicalVolume(ctx, device, uuid)
}

func (h hostTools) createGroup(ctx context.Context, g volume.Group, tag string, devices []string) (string, error) {
	made, err := h.lvm.CreateGroupOf(ctx, g, tag, devices)
	return made.UUID, err
}

func (h hostTools) extendGroup(ctx context.Context, g volume.Group, uuid string, devices []string) error {
	return h.lvm.ExtendGroup(ctx, g, uuid, devices)
}

func (h hostTools) makePool(ctx context.Context, p lvm.NewThinPool) error {
	_, err := h.lvm.ThinPool(ctx, p.Group, p.Name)
	if errors.Is(err, lvm.ErrNoPool) {
		_, err = h.lvm.CreateThinPool(ctx, p)
		return err
	}
	if err != nil {
		return err
	}
	return h.lvm.Flush(ctx, p.Group, p.Name) // a killed call may have left the pool's metadata in the disk's cache
}
