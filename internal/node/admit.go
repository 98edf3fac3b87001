package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Errors that callers may test for with errors.Is.
var (
	// ErrRefused: the volume exists, but this call may not use it.
	ErrRefused = errors.New("refused")
	// ErrDamaged: the volume does not hold the content that its tags name; a person must repair it.
	ErrDamaged = errors.New("damaged")
	// ErrLost: this node has had the volume before and its LV is gone.
	ErrLost = errors.New("lost")
)

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// ownedTags returns the tags of a logical volume, and refuses one that flexlvm does not own, or that is one of its pools.
func ownedTags(lv lvm.LogicalVolume) (volume.Tags, error) {
	switch {
	case !volume.Owned(lv.Tags):
		return volume.Tags{}, refused("logical volume %s/%s exists and does not carry the tag %q, so it is not flexlvm's; rename or remove it, or use another name", lv.Group, lv.Name, volume.TagOwned)
	case volume.OwnedDirectoryPool(lv.Tags):
		return volume.Tags{}, refused("logical volume %s/%s is a directory pool of flexlvm's and not a volume; use another name", lv.Group, lv.Name)
	case lv.Pool && volume.OwnedPool(lv.Tags):
		return volume.Tags{}, refused("logical volume %s/%s is a thin pool of flexlvm's and not a volume; use another name", lv.Group, lv.Name)
	}
	t, err := volume.ParseTags(lv.Tags)
	if err != nil && lv.Shape.Layout == volume.Directory {
		return volume.Tags{}, refused("the tags of volume %s/%s are invalid (%s); %s", lv.Group, lv.Name, err, remedy(err, "a person must correct its record ("+recordOf(lv)+")"))
	}
	if err != nil {
		return volume.Tags{}, refused("the tags of logical volume %s/%s are invalid (%s); %s", lv.Group, lv.Name, err, remedy(err, byLvchange))
	}
	return t, nil
}

// byLvchange is the remedy for a logical volume's tags that are invalid.
const byLvchange = "a person must correct them with lvchange"

// remedy returns what to do about tags that cannot be parsed.
func remedy(err error, otherwise string) string {
	return volume.Remedy(errors.Is(err, volume.ErrUnknown), otherwise)
}

// admit decides whether a caller may mount a volume with these tags. It is pure.
func admit(spec volume.Spec, t volume.Tags, groupUUID string) error {
	if spec.Kind == volume.Snapshot || t.Kind == volume.Snapshot {
		return neverMountedErr(spec)
	}
	if err := checkGroup(spec, groupUUID); err != nil {
		return err
	}
	if err := checkOwner(spec, t); err != nil {
		return err
	}
	if spec.ReadOnly && (t.State == volume.Unreferenced || t.State == volume.Doomed) {
		return noReplicaErr(spec, "it is being taken back")
	}
	switch t.State {
	case volume.Creating, volume.Ready:
		if t.Clone != "" && (t.State == volume.Ready || spec.CloneOf == "") {
			return refused("volume %s/%s is a copy of another that was never finished, and %s %q does not say of which; delete its claim", spec.Group, spec.Name, volume.OptionCloneOf, spec.CloneOf)
		}
		return nil
	case volume.Unreferenced:
		return refused("volume %s/%s is unreferenced: its claim was deleted and its space may be taken back at any time; bring it back first (`flexlvm volumes undelete %s --no-manifests`, if its PersistentVolume is there)", spec.Group, spec.Name, spec.Name)
	case volume.Retained:
		return refused("volume %s/%s is retained: its PersistentVolume was deleted, or somebody has retained the volume; bring it back first (`flexlvm volumes undelete %s --no-manifests`, if its PersistentVolume is there)", spec.Group, spec.Name, spec.Name)
	}
	return refused("volume %s/%s is being removed", spec.Group, spec.Name)
}

func neverMountedErr(spec volume.Spec) error {
	return refused("volume %s/%s is a snapshot, which is never mounted; make a claim that begins as a copy of it (dataSource)", spec.Group, spec.Name)
}

const notMeant = "so this is not the volume that the PersistentVolume was created for"

// checkOwner compares a call's spec with the volume's tags.
func checkOwner(spec volume.Spec, t volume.Tags) error {
	switch {
	case spec.Namespace != "" && spec.Namespace != t.Namespace:
		return refused("volume %s/%s belongs to namespace %q, not to %q", spec.Group, spec.Name, t.Namespace, spec.Namespace)
	case spec.Cluster != t.Cluster:
		return refused("%s %q: volume %s/%s was created for cluster %q", volume.OptionCluster, spec.Cluster, spec.Group, spec.Name, t.Cluster)
	case spec.FS != "" && spec.FS != t.FS:
		return refused("%s %q: volume %s/%s holds the file system %s, so this is not the volume that was brought back", volume.OptionFS, spec.FS, spec.Group, spec.Name, t.FS)
	case spec.Encrypted && t.LUKS == "":
		return refused("%s %q: volume %s/%s is not encrypted, %s", volume.OptionEncrypted, "true", spec.Group, spec.Name, notMeant)
	case !spec.Encrypted && t.LUKS != "":
		return refused("volume %s/%s is encrypted, and its PersistentVolume does not say so (%s); only the CSI driver mounts it", spec.Group, spec.Name, volume.OptionEncrypted)
	case spec.FSType != t.FSType:
		return refused("%s %q: volume %s/%s was made with %s, %s", volume.OptionFSType, spec.FSType, spec.Group, spec.Name, t.FSType, notMeant)
	case spec.Kind != t.Kind:
		return refused("%s %q: volume %s/%s is of kind %q", volume.OptionKind, spec.Kind, spec.Group, spec.Name, t.Kind)
	// An unfinished copy is created again, in the requested size. A reader is promised no size.
	case spec.Size > t.Size && t.Clone == "" && !spec.ReadOnly:
		return refused("%s %d: volume %s/%s holds only %d bytes; the option never changes and the volume never shrinks, %s", volume.OptionSize, int64(spec.Size), spec.Group, spec.Name, int64(t.Size), notMeant)
	}
	return nil
}

func checkGroup(spec volume.Spec, uuid string) error {
	if spec.GroupUUID == "" || spec.GroupUUID == uuid {
		return nil
	}
	return refused("%s %q: the volume group %s on this node is another one (%s); if the node or its disks were replaced, the volume is lost and its claim must be deleted", volume.OptionGroupUUID, spec.GroupUUID, spec.Group, uuid)
}

func damagedErr(lv lvm.LogicalVolume, t volume.Tags, c content, id string, err error) error {
	info, what := c.info(), fmt.Sprintf("its file system has UUID %s", id)
	if err != nil {
		what = err.Error()
	}
	return fmt.Errorf("%w: volume %s/%s is %s and should hold the %s file system %s, but %s; it is not formatted again: restore it, or check it with `%s` and `wipefs`", ErrDamaged, lv.Group, lv.Name, t.State, info.title, t.FS, what, info.checkCommand)
}

func removedErr(spec volume.Spec, since time.Time) error {
	return refused("volume %s/%s was released and removed for good at %s, and is not created again: its PersistentVolume is gone, so this call is late; a new volume needs another name, or a wait of %s", spec.Group, spec.Name, since.UTC().Format(time.RFC3339), tombstoneLife)
}

func evictedErr(spec volume.Spec, err error) error {
	return fmt.Errorf("%w: the volume with the file system %s was to be brought back (%s), and now: %w; an empty volume will not take its place: it was evicted before, so delete the claim, and restore the data from a backup", ErrLost, spec.FS, volume.OptionFS, err)
}

func lostErr(record string, err error) error {
	return fmt.Errorf("%w: this node has had the volume before (%s), and now: %w; an empty volume will not take its place: restore it, or delete the claim, or delete that file if the data is not wanted", ErrLost, record, err)
}
