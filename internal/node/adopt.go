package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Adoption names a logical volume with a file system, created by a person, that becomes a flexlvm volume,
// and the namespace and cluster that it is for.
type Adoption struct {
	Group     volume.Group
	Name      volume.Name
	Namespace string
	Cluster   string
	// Size is how much the user may write; 0 is the most that the device holds.
	Size volume.Bytes
}

func (a Adoption) String() string { return string(a.Group) + "/" + string(a.Name) }

// PlanAdoption returns the volume that Adopt would create, or the error that it would return. It changes
// nothing.
func (e *Engine) PlanAdoption(ctx context.Context, a Adoption) (inventory.Volume, error) {
	release, err := e.lockVolume(ctx, a.Group, a.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	defer release()
	c, err := e.candidate(ctx, a)
	if err != nil {
		return inventory.Volume{}, err
	}
	c.lv.Tags = c.tags.Strings()
	return e.describe(c.lv), nil
}

// Adopt turns a logical volume that a person has created, and its file system, into a flexlvm volume in state
// retained: no pod gets it and nothing removes it before it has a PersistentVolume (SetStateOf). Its files
// stay as they are, except that they count toward the volume's quota. Nothing is ever formatted.
//
// Adopt first writes the tags, with volume.AdoptingTag, and removes that tag once all files are in the quota.
// Killed in between, it leaves the volume with that tag, and the next call continues from there.
func (e *Engine) Adopt(ctx context.Context, a Adoption) (inventory.Volume, error) {
	release, err := e.lockVolume(ctx, a.Group, a.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	defer release()
	c, err := e.candidate(ctx, a)
	if err != nil {
		return inventory.Volume{}, err
	}
	if err := e.beginAdoption(ctx, c); err != nil {
		return inventory.Volume{}, err
	}
	fixed, err := e.applyQuota(ctx, c, a.Size == 0)
	if err != nil {
		return inventory.Volume{}, fmt.Errorf("%w; %s", err, adoptionRemedy(a))
	}
	add := []string{volume.Retained.Tag()}
	if fixed {
		add = append(add, volume.FixedTag)
	}
	if err := e.lvm.Retag(ctx, c.lv, []string{volume.AdoptingTag}, add); err != nil {
		return inventory.Volume{}, err
	}
	e.after("tag adopted")
	lv, err := e.lvm.Volume(ctx, a.Group, a.Name)
	if err != nil {
		return inventory.Volume{}, err
	}
	return e.describe(lv), nil
}

// adoptionRemedy returns what a person can do about an adoption that failed half-way.
func adoptionRemedy(a Adoption) string {
	return fmt.Sprintf("no file's content was changed; fix the cause and call `flexlvm volumes adopt` again, or leave the volume as it was with `flexlvm volumes disown %s --group %s`", a.Name, a.Group)
}

// A candidate is a logical volume that may be adopted, and the tags that it would get.
type candidate struct {
	lv     lvm.LogicalVolume
	device lvm.Device
	tags   volume.Tags
	// maxSize is the largest size that a volume created by flexlvm would have on this device.
	maxSize volume.Bytes
	// was holds the tags of an earlier, unfinished adoption; nil if there is none.
	was *volume.Tags
}

func (e *Engine) candidate(ctx context.Context, a Adoption) (c candidate, err error) {
	g, err := e.lvm.Group(ctx, a.Group)
	if err != nil {
		return c, err
	}
	if g.Missing > 0 {
		return c, fmt.Errorf("adopt %s: %w: %s lacks %d of its %s; bring them back first", a, lvm.ErrPartial, a.Group, g.Missing, volume.Pluralize(g.Devices, "device", "devices"))
	}
	if c.lv, err = e.lvm.Volume(ctx, a.Group, a.Name); err != nil {
		return c, err
	}
	if c.was, err = unfinishedAdoption(c.lv, a); err != nil {
		return c, err
	}
	if err := checkAdoptable(c.lv); err != nil {
		return c, err
	}
	if c.device, err = e.usableDevice(ctx, a.Group, a.Name); err != nil {
		return c, err
	}
	if c.device.VolumeUUID != c.lv.UUID {
		return c, fmt.Errorf("%s belongs to volume %s and LVM says %s is %s; run `flexlvm doctor`", c.device.Path, c.device.VolumeUUID, a, c.lv.UUID)
	}
	fs, kind, err := e.findFilesystem(ctx, a, c.device.Path)
	if err != nil {
		return c, err
	}
	if err := e.checkUniqueUUID(ctx, a, fs); err != nil {
		return c, err
	}
	c.tags, c.maxSize, err = tagsOfAdopted(c, a, fs, kind)
	return c, err
}

// tagsOfAdopted returns the tags that the volume gets, and the largest size that it may have.
func tagsOfAdopted(c candidate, a Adoption, fs string, kind volume.FSType) (tags volume.Tags, maxSize volume.Bytes, err error) {
	shape := c.lv.Shape
	spec := volume.Spec{
		Group: a.Group, GroupUUID: c.lv.GroupUUID, Name: a.Name, Size: a.Size, FS: fs, FSType: kind,
		Layout: shape.Layout, Stripes: shape.Stripes, StripeKiB: shape.StripeKiB, Mirrors: shape.Mirrors,
		Kind: volume.Claim, Cluster: a.Cluster, Namespace: a.Namespace,
	}
	maxSize = spec.HeldBy(c.lv.Size)
	switch {
	case maxSize == 0:
		return tags, 0, refused("logical volume %s has %s, and the least that a volume with %s takes is more; extend it first (`lvextend --size %db %[1]s`)", a, c.lv.Size, kind, int64(minDeviceSize(spec)))
	case a.Size > maxSize:
		return tags, 0, refused("logical volume %s holds a volume of %d bytes at most, and %d are asked for; extend it first (lvextend), or ask for less", a, int64(maxSize), int64(a.Size))
	case a.Size == 0:
		spec.Size = maxSize
	}
	if err := spec.Validate(); err != nil {
		return tags, 0, err
	}
	return volume.Tags{
		State: volume.Retained, FS: fs, Size: spec.Size, Namespace: a.Namespace, Cluster: a.Cluster,
		Kind: volume.Claim, FSType: kind, Adopting: true,
	}, maxSize, nil
}

func minDeviceSize(spec volume.Spec) volume.Bytes {
	spec.Size = volume.Block
	return spec.DeviceSize()
}

// beginAdoption writes the tags in a single write of LVM's metadata.
func (e *Engine) beginAdoption(ctx context.Context, c candidate) error {
	del, add := adoptingTags(c.was, c.tags)
	if len(del) == 0 && len(add) == 0 {
		return e.lvm.Flush(ctx, c.lv.Group, c.lv.Name) // a killed call may have left the tags in the disk's cache
	}
	if err := e.lvm.Retag(ctx, c.lv, del, add); err != nil {
		return err
	}
	e.after("tag adopting")
	return nil
}

// adoptingTags returns the tags to remove and to add. They can differ from those of an unfinished adoption,
// because a person may have changed the file system's UUID or created another file system since. It is pure.
func adoptingTags(was *volume.Tags, tags volume.Tags) (del, add []string) {
	add = tags.Strings()
	if was == nil {
		return nil, add
	}
	del = was.Strings()
	both := func(tag string) bool {
		return slices.Contains(was.Strings(), tag) && slices.Contains(tags.Strings(), tag)
	}
	return slices.DeleteFunc(del, both), slices.DeleteFunc(add, both)
}

// applyQuota puts the existing files under the volume's quota. With lower, a size that exceeds the file system's
// room is lowered to that. fixed reports whether the file system reserves more for itself than one of
// flexlvm's would (volume.Tags.Fixed).
func (e *Engine) applyQuota(ctx context.Context, c candidate, lower bool) (fixed bool, err error) {
	f := openedVolume{device: c.device, content: e.contentOf(c.device, c.tags), tags: c.tags}
	fs, err := mount.Attach(f.content.info().mountType, f.content.path, false)
	if err != nil {
		return false, err
	}
	defer func() { _ = fs.Close() }()
	e.after("attach")
	if err := e.assignFiles(ctx, fs, f); err != nil {
		return false, err
	}
	// A limit left by an earlier adoption would be mistaken for the file system's room, and would stay in
	// force if the size is smaller now.
	if err := quota.Set(f.content.path, quota.Limit{}); err != nil {
		return false, err
	}
	e.after("lift quota")
	if err := e.grow(ctx, fs.Root(), f, 0); err != nil {
		return false, err
	}
	room, err := e.occupancyOf(fs, f)
	if err != nil {
		return false, err
	}
	if f.tags.Size, err = e.fit(ctx, c.lv, f, room, lower); err != nil {
		return false, err
	}
	if err := e.setQuota(ctx, fs.Root(), f, 0); err != nil {
		return false, err
	}
	fixed, err = reservesMore(f, room.all < c.maxSize)
	// The quota must be on the disk before the tags say that the adoption is done.
	return fixed, errors.Join(err, fs.Close(), awaitClosed(ctx, f.content.path))
}

// assignFiles assigns all files to the volume's project, if none of them belongs to another project.
func (e *Engine) assignFiles(ctx context.Context, fs *mount.Attached, f openedVolume) error {
	if err := errors.Join(e.boundRetries(f), f.content.mounted(f.content.path).check(), quota.CheckEnforced(f.content.path)); err != nil {
		return err
	}
	if err := onlyOurProject(ctx, fs); err != nil {
		return err
	}
	if err := quota.AssignAll(ctx, fs.Root()); err != nil {
		return err
	}
	e.after("assign projects")
	return nil
}

// reservesMore reports whether a file system reserves more for itself than one of flexlvm's would: already now,
// or, for ext4, of the space that it grows by.
func reservesMore(f openedVolume, now bool) (bool, error) {
	if now || f.tags.FSType != volume.Ext4 {
		return now, nil
	}
	sb, err := readExt4(f.content.path)
	return sb.HighOverhead, err
}

// onlyOurProject checks all files before the first of them is changed.
func onlyOurProject(ctx context.Context, fs *mount.Attached) error {
	err := quota.CheckProjects(ctx, fs.Root())
	if errors.Is(err, quota.ErrOtherProject) {
		return refused("%s, and the quota of a volume is that of one project; take it out of that (`chattr -R -p 0`)", err)
	}
	return err
}

// An occupancy is how much space the files on a file system use, and how much it has for files in total.
type occupancy struct{ used, all volume.Bytes }

// occupancyOf returns the file system's occupancy. No quota may have a limit at that time.
func (e *Engine) occupancyOf(fs *mount.Attached, f openedVolume) (occupancy, error) {
	usage, err := quota.Read(f.content.path)
	if err != nil {
		return occupancy{}, err
	}
	free, err := f.content.mounted(f.content.path).free(fs.Root())
	all := usage.Used + free
	return occupancy{used: usage.Used, all: all - all%volume.Block}, err
}

// fit returns the volume's size. The user gets all of it, and the existing files count toward it. With lower,
// it lowers a size that the file system has no room for, in the tags too.
func (e *Engine) fit(ctx context.Context, lv lvm.LogicalVolume, f openedVolume, room occupancy, lower bool) (volume.Bytes, error) {
	size := f.tags.Size
	where := string(lv.Group) + "/" + string(lv.Name)
	switch {
	case room.used > size:
		return 0, refused("the files on %s take %d bytes, more than the %d of the volume; extend it (`lvextend --size +%db %[1]s`), or ask for more", where, int64(room.used), int64(size), int64((room.used - size + room.used/16).RoundUp(volume.DefaultExtent)))
	case room.all >= size:
		return size, nil
	case !lower:
		return 0, refused("the file system on %s has room for %d bytes, less than the %d that are asked for: it reserves more space for its own metadata than a file system that flexlvm creates; request a smaller size, or extend the logical volume and the file system", where, int64(room.all), int64(size))
	}
	if err := e.lvm.Retag(ctx, lv, []string{volume.SizeTag(size)}, []string{volume.SizeTag(room.all)}); err != nil {
		return 0, err
	}
	e.after("tag size")
	return room.all, nil
}
