package node

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrNotMounted: the volume is not mounted at the path.
var ErrNotMounted = errors.New("not mounted")

// mountedAt returns the device of a volume if the volume is the topmost mount at path.
func mountedAt(g volume.Group, n volume.Name, path string) (lvm.Device, error) {
	points, err := mount.At(path)
	if err != nil {
		return lvm.Device{}, err
	}
	if len(points) > 0 {
		d, err := deviceOfMount(points[len(points)-1])
		if err == nil && d.Group == g && d.Name == n {
			return d, nil
		}
		if err != nil && !errors.Is(err, lvm.ErrNoDevice) {
			return lvm.Device{}, err
		}
	}
	return lvm.Device{}, fmt.Errorf("%w: volume %s/%s at %s", ErrNotMounted, g, n, path)
}

// mountedOrPublished is mountedAt for the growth of a volume. If nothing is mounted at path, it also accepts a raw
// block volume that is published somewhere else: kubelet (1.37) remembers one path for each volume, the path of
// the last pod that got the device, and requests growth at that path even after that pod has ended.
func mountedOrPublished(g volume.Group, n volume.Name, path string) (lvm.Device, error) {
	d, mountedErr := mountedAt(g, n, path)
	if !errors.Is(mountedErr, ErrNotMounted) {
		return d, mountedErr
	}
	points, err := mount.At(path)
	if err != nil {
		return lvm.Device{}, err
	}
	if len(points) > 0 {
		return lvm.Device{}, mountedErr
	}
	d, err = lvm.FindDevice(g, n)
	if errors.Is(err, lvm.ErrNoDevice) {
		return lvm.Device{}, mountedErr
	}
	if err != nil {
		return lvm.Device{}, err
	}
	published, err := isPublished(d)
	if err == nil && !published {
		err = mountedErr
	}
	return d, err
}

// isPublished reports whether a volume is a raw block volume whose device is mounted for a pod.
func isPublished(d lvm.Device) (bool, error) {
	on, err := mappingsOn(d)
	if err != nil {
		return false, err
	}
	mounted, err := mount.ByDevice()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(on, func(m dm.Mapping) bool {
		return m.Name == dm.BlockName(d.VolumeUUID) && len(mounted[m.Number]) > 0
	}), nil
}

// directoryMountedAt returns the pool of a directory volume that is the topmost mount at path; false if the
// volume is not a directory volume.
func directoryMountedAt(g volume.Group, n volume.Name, path string) (pool volume.Name, is bool, err error) {
	if _, err := mountedAt(g, n, path); err != nil {
		return "", false, err
	}
	points, err := mount.At(path)
	if err != nil || len(points) == 0 {
		return "", false, err
	}
	top := points[len(points)-1]
	if _, is = directoryAt(top); !is {
		return "", false, nil
	}
	d, err := volumeByNumber(top.Number)
	return d.Name, true, err
}

// Space is the output of df for a mounted volume; for a raw block volume, only its size.
type Space struct {
	Size, Used, Free               volume.Bytes
	Inodes, InodesUsed, InodesFree int64
	Block                          bool
}

// Space returns the output of df for a volume that must be mounted at path (ErrNotMounted). It runs no
// program.
func (e *Engine) Space(g volume.Group, n volume.Name, path string) (Space, error) {
	d, err := mountedAt(g, n, path)
	if err != nil {
		return Space{}, err
	}
	return spaceOf(d, path)
}

// spaceOf is Space for a device that is mounted at path, or for a published raw block volume.
func spaceOf(d lvm.Device, path string) (Space, error) {
	on, err := mappingsOn(d)
	if err != nil {
		return Space{}, err
	}
	for _, m := range on {
		if m.Name == dm.BlockName(d.VolumeUUID) {
			size, err := dm.Size(dm.Sys, m.Number)
			return Space{Size: size, Block: true}, err
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Space{}, fmt.Errorf("read the usage of %s: %w", path, err)
	}
	block := volume.Bytes(st.Bsize)
	return Space{
		Size: volume.Bytes(st.Blocks) * block, Used: volume.Bytes(st.Blocks-st.Bfree) * block, Free: volume.Bytes(st.Bavail) * block,
		Inodes: int64(st.Files), InodesUsed: int64(st.Files - st.Ffree), InodesFree: int64(st.Ffree),
	}, nil
}
