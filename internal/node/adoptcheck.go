package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/ext4"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unfinishedAdoption returns the tags of an adoption that was begun and not finished; nil if there is none.
func unfinishedAdoption(lv lvm.LogicalVolume, a Adoption) (*volume.Tags, error) {
	if !slices.ContainsFunc(lv.Tags, volume.IsFlexlvmTag) {
		return nil, nil
	}
	tags, err := ownedTags(lv)
	switch {
	case err != nil:
		return nil, err
	case !tags.Adopting && tags.State == volume.Retained:
		return nil, refused("logical volume %s is a flexlvm volume already, and retained; `flexlvm volumes undelete %s` prints the manifests of a PersistentVolume and a claim for it", a, a.Name)
	case !tags.Adopting:
		return nil, refused("logical volume %s is a flexlvm volume already, %s and of namespace %q; `flexlvm volumes show %s` shows details", a, tags.State, tags.Namespace, a.Name)
	case tags.Namespace != a.Namespace || tags.Cluster != a.Cluster:
		return nil, refused("the adoption of logical volume %s was begun for namespace %q of cluster %q; call it for these, or start again after `flexlvm volumes disown %s`", a, tags.Namespace, tags.Cluster, a.Name)
	}
	return &tags, nil
}

// checkAdoptable refuses a logical volume whose layout flexlvm does not support, or that is in use. It is pure.
func checkAdoptable(lv lvm.LogicalVolume) error {
	where := string(lv.Group) + "/" + string(lv.Name)
	layout := lv.Shape.Layout
	kind, access := lv.Attr[:1], byte('-')
	if len(lv.Attr) > 1 {
		access = lv.Attr[1]
	}
	raid := layout == volume.Raid1 && strings.ContainsAny(kind, "rR")
	switch {
	case lv.Pool:
		return refused("logical volume %s is a thin pool", where)
	case layout == volume.Thin:
		return refused("logical volume %s is in thin pool %s, and its space in the pool was never reserved; copy its data to a volume of a class with layout thin", where, lv.Shape.ThinPool)
	case lv.HasSnapshots:
		return refused("logical volume %s has snapshots, which LVM would remove with it; remove or merge them first (`lvs -o lv_name,origin %s`)", where, lv.Group)
	case kind == "s" || kind == "S":
		return refused("logical volume %s is a snapshot of another, and invalid once that is full; copy its data to a volume of its own", where)
	case layout == "" || kind != "-" && !raid:
		return refused("logical volume %s is of a layout that flexlvm does not have (lv_attr %s); it has linear, striped and raid1. `lvconvert` may make one of these of it", where, lv.Attr)
	case access != 'w':
		return refused("logical volume %s is read-only (lv_attr %s); `lvchange --permission rw %[1]s` changes that", where, lv.Attr)
	case lv.Health != "":
		return refused("logical volume %s is not whole: LVM says %q of it; repair it first", where, lv.Health)
	case !lv.Active:
		return refused("logical volume %s is not active, so its content cannot be checked; unless another host uses it, `lvchange --activate y %[1]s`", where)
	case lv.Skipped:
		return refused("LVM skips the activation of logical volume %s, so no pod would have it after a boot; %s", where, endsSkipping(lv))
	case lv.Open:
		return fmt.Errorf("adopt %s: %w: %s; unmount it and take it out of /etc/fstab, then try again", where, ErrInUse, describeLocalUse(lv))
	}
	return nil
}

// describeLocalUse describes how a volume is in use, as far as this mount namespace shows that.
func describeLocalUse(lv lvm.LogicalVolume) string {
	if mounted, err := mount.ByDevice(); err == nil {
		if points, err := mountsOf(lv, mounted); err == nil && len(points) > 0 {
			return "it is mounted on " + strings.Join(points, ", ")
		}
	}
	return "its device is open: another program, a container, or a device made of it has it"
}

// findFilesystem returns the UUID and the type of the file system on a device, and refuses the device unless
// it holds exactly one file system, which flexlvm can use.
func (e *Engine) findFilesystem(ctx context.Context, a Adoption, path string) (uuid string, kind volume.FSType, err error) {
	found, err := lvm.Signatures(ctx, e.host.Killable, path)
	if err != nil {
		return "", kind, err
	}
	switch {
	case len(found) == 0:
		return "", kind, refused("no file system is on logical volume %s; an empty volume needs no adoption: make a claim", a)
	case len(found) > 1:
		return "", kind, refused("logical volume %s carries several signatures (%s), as a partition table does, so it is not certain what it holds; `wipefs` shows them", a, strings.Join(found, "; "))
	}
	uuid, xfsErr := xfsKind{host: e.host}.uuid(path)
	if xfsErr == nil {
		return uuid, volume.XFS, nil
	}
	sb, err := readExt4(path)
	switch {
	case errors.Is(err, ext4.ErrNoFilesystem) && errors.Is(xfsErr, errNoFilesystem):
		return "", kind, refused("logical volume %s holds %s, and neither XFS nor ext4 that flexlvm can use (%s; %s)", a, found[0], xfsErr, err)
	case err != nil:
		return "", kind, errors.Join(err, xfsErr)
	case !sb.ProjectQuota:
		return "", kind, refused("the ext4 file system on logical volume %s has no project quota; convert it yourself, because an interrupted conversion may need e2fsck: `e2fsck -f %s`, then `tune2fs -O project -Q prjquota %[2]s`", a, path)
	}
	return sb.UUID, volume.Ext4, checkExt4(path, sb)
}

// checkUniqueUUID refuses a file system that the tags of another volume name too: a copy of a whole device has
// the same UUID.
func (e *Engine) checkUniqueUUID(ctx context.Context, a Adoption, fs string) error {
	all, err := e.lvm.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, lv := range all {
		tags, err := volume.ParseTags(lv.Tags)
		if err == nil && tags.FS == fs && (lv.Group != a.Group || lv.Name != a.Name) {
			return refused("the file system on logical volume %s has the UUID %s, as that of volume %s/%s: it is a copy; give it one of its own (`xfs_admin -U generate`, `tune2fs -U random`)", a, fs, lv.Group, lv.Name)
		}
	}
	return nil
}
