package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A directoryRecord is the record of a directory volume, stored next to the directory that its pods see. Its
// tags are those that a logical volume would have.
type directoryRecord struct {
	Tags    []string      `json:"tags"`
	Project quota.Project `json:"project"`
	Inodes  int64         `json:"inodes,omitempty"` // the limit that was asked for; 0: none
	Created time.Time     `json:"created"`
}

// volumePath returns the directory in the pool that holds a volume of this name.
func volumePath(n volume.Name) string {
	if n.IsDoomed() {
		return path.Join(goneDir, string(n))
	}
	return path.Join(volumesDir, string(n))
}

// recordOf returns where the record of a directory volume is, for error messages.
func recordOf(lv lvm.LogicalVolume) string {
	return fmt.Sprintf("%s in the file system of directory pool %s", path.Join(volumePath(lv.Name), recordFile), volume.DirectoryPoolOf(lv.Group, lv.Shape.DirectoryPool))
}

// listDir lists one of the pool's own directories.
func (p *directoryPool) listDir(dir string) ([]string, error) {
	d, err := p.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err := errors.Join(err, d.Close()); err != nil {
		return nil, fmt.Errorf("list %s of directory pool %s: %w", dir, p.poolName(), err)
	}
	return names, nil
}

// volumes returns the sorted names of the pool's volumes, followed by those that are being removed.
func (p *directoryPool) volumes() (all []volume.Name, err error) {
	for _, dir := range []string{volumesDir, goneDir} {
		names, err := p.listDir(dir)
		if err != nil {
			return nil, err
		}
		slices.Sort(names)
		for _, name := range names {
			all = append(all, volume.Name(name))
		}
	}
	return all, nil
}

// read returns a volume of the pool, with its tags and record, as a logical volume whose size is what it
// takes of the pool. The error is lvm.ErrNoVolume if there is no such volume.
func (p *directoryPool) read(n volume.Name) (lvm.LogicalVolume, directoryRecord, error) {
	var rec directoryRecord
	err := readJSON(p.Root, path.Join(volumePath(n), recordFile), &rec)
	if errors.Is(err, fs.ErrNotExist) {
		if n.IsDoomed() { // its removal is complete except for the directory
			_ = p.dropRecord(n, func(string) {})
		}
		if _, lstatErr := p.Lstat(volumePath(n)); errors.Is(lstatErr, fs.ErrNotExist) {
			return lvm.LogicalVolume{}, rec, fmt.Errorf("%w: %s in directory pool %s", lvm.ErrNoVolume, n, p.poolName())
		}
	}
	if err != nil {
		return lvm.LogicalVolume{}, rec, fmt.Errorf("look up volume %s in directory pool %s: %w", n, p.poolName(), err)
	}
	lv := lvm.LogicalVolume{
		Group: p.device.Group, GroupUUID: p.device.GroupUUID, Name: n, Tags: rec.Tags, Extent: volume.Block, Active: true,
		Shape: volume.Shape{Layout: volume.Directory, DirectoryPool: p.name}, Created: rec.Created,
	}
	t, err := volume.ParseTags(rec.Tags)
	if err != nil {
		return lv, rec, nil // ownedTags reports what is wrong with the tags
	}
	lv.UUID = t.FS
	lv.Size, err = p.sizeInPool(rec, t)
	return lv, rec, err
}

// sizeInPool returns how much a volume takes of its pool, by its quota.
func (p *directoryPool) sizeInPool(rec directoryRecord, t volume.Tags) (volume.Bytes, error) {
	u, err := quota.ReadOf(p.device.Path, rec.Project)
	if err != nil {
		return 0, err
	}
	limit := limitOf(rec, t.Size)
	return volume.DirectorySize(max(u.Limit.Size, limit.Size), max(u.Limit.Inodes, limit.Inodes)), nil
}

// limitOf returns the quota of a volume of this size.
func limitOf(rec directoryRecord, size volume.Bytes) quota.Limit {
	return quota.Limit{Size: size.RoundUp(volume.Block), Inodes: volume.DirectoryInodes(size, rec.Inodes)}
}

// mountsOfDirectory returns the paths, among these mounts of the pool's device, at which a volume of the pool
// or a part of it (subPath) is mounted.
func mountsOfDirectory(n volume.Name, mounted []mount.Point) (at []string) {
	root := "/" + path.Join(volumePath(n), dataDir)
	for _, point := range mounted {
		if point.Root == root || strings.HasPrefix(point.Root, root+"/") {
			at = append(at, point.Path)
		}
	}
	return at
}

// inUse reports whether a volume of the pool is mounted in the mount namespace of any process: the equivalent
// of an open device in other layouts. A container may keep a mount that its host has unmounted.
func (p *directoryPool) inUse(n volume.Name) (bool, error) {
	everywhere, err := mount.Everywhere(mount.Proc, p.device.Number)
	return len(mountsOfDirectory(n, everywhere)) > 0, err
}

// directoryAt returns the name of the directory volume that a mount shows; false if it shows none. Of all
// flexlvm's mounts, only those of directory volumes have this root in their file system.
func directoryAt(point mount.Point) (volume.Name, bool) {
	rest, ours := strings.CutPrefix(point.Root, "/"+volumesDir+"/")
	name, is := strings.CutSuffix(rest, "/"+dataDir)
	if !ours || !is {
		return "", false
	}
	n, err := volume.ParseName("volume", name)
	return n, err == nil
}

// deviceOfMount returns the device of the volume that a mount shows. For a directory volume, it is the pool's
// device under the volume's name.
func deviceOfMount(point mount.Point) (lvm.Device, error) {
	d, err := volumeByNumber(point.Number)
	if err != nil {
		return d, err
	}
	if n, is := directoryAt(point); is {
		d.Name = n
	}
	return d, nil
}
