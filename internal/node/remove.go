package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Ref names a volume on this node, and the cluster that answers for it.
type Ref struct {
	Group   volume.Group
	Name    volume.Name
	Cluster string
}

func (r Ref) String() string { return string(r.Group) + "/" + string(r.Name) }

// ErrInUse: the volume's device is open, in this mount namespace or another.
var ErrInUse = errors.New("in use")

// Release moves a volume on when its PersistentVolume is gone for good: to
// Unreferenced, so that its space may be taken back, or to Retained. The caller
// answers for the evidence. A volume that is there already is left alone; one in
// any state but creating and ready otherwise is refused.
func (e *Engine) Release(ctx context.Context, ref Ref, to volume.State) error {
	if to != volume.Unreferenced && to != volume.Retained {
		return fmt.Errorf("release volume %s: state %s is neither unreferenced nor retained", ref, to)
	}
	release, err := e.lockVolume(ctx, ref.Group, ref.Name)
	if err != nil {
		return err
	}
	defer release()
	lv, tags, err := e.refer(ctx, ref, ref.Name)
	if err != nil {
		return err
	}
	switch tags.State {
	case to:
		return nil
	case volume.Creating, volume.Ready:
	default:
		return refused("volume %s is %s and cannot become %s", ref, tags.State, to)
	}
	if err := e.records.remove(ref.Group, ref.Name); err != nil {
		return err
	}
	e.after("remove record")
	if err := e.lvm.Retag(ctx, lv, []string{tags.State.Tag()}, []string{to.Tag()}); err != nil {
		return err
	}
	e.after("tag " + string(to))
	return nil
}

// refer looks a volume up under the name it has now and checks that it is ours
// and of the cluster that answers for it.
func (e *Engine) refer(ctx context.Context, ref Ref, now volume.Name) (lvm.LogicalVolume, volume.Tags, error) {
	lv, err := e.lvm.Volume(ctx, ref.Group, now)
	if err != nil {
		return lv, volume.Tags{}, err
	}
	tags, err := ours(lv)
	if err != nil {
		return lv, tags, err
	}
	if tags.Cluster != ref.Cluster {
		return lv, tags, refused("volume %s was made for cluster %q, not for %q", ref, tags.Cluster, ref.Cluster)
	}
	return lv, tags, nil
}

// Remove takes an unreferenced volume away: it renames it, which commits the
// removal and hides it from every mount, wipes it, and removes it. A volume that
// is gone already is success: LVM was asked and sees the group without it. One
// whose device is open is refused with ErrInUse and untouched; one in any state
// but unreferenced is refused.
//
// Killed before the rename it has changed nothing; killed after, the next call
// goes on from there.
func (e *Engine) Remove(ctx context.Context, ref Ref, w volume.Wipe) error {
	release, err := e.lockVolume(ctx, ref.Group, ref.Name)
	if err != nil {
		return err
	}
	defer release()
	if err := e.finish(ctx, ref, w); err != nil {
		return err
	}
	lv, tags, err := e.refer(ctx, ref, ref.Name)
	switch {
	case errors.Is(err, lvm.ErrNoVolume):
		return e.records.remove(ref.Group, ref.Name)
	case err != nil:
		return err
	case tags.State != volume.Unreferenced:
		return refused("volume %s is %s; only an unreferenced volume is removed", ref, tags.State)
	case lv.Origin:
		return hasSnapshots(ref)
	case lv.Open:
		return fmt.Errorf("remove volume %s: %w: its device is open on this node; it is tried again", ref, ErrInUse)
	}
	if err := e.records.remove(ref.Group, ref.Name); err != nil {
		return err
	}
	e.after("remove record")
	if err := e.lvm.Rename(ctx, lv, ref.Name.Doomed()); err != nil {
		return err
	}
	e.after("lvrename")
	return e.finish(ctx, ref, w)
}

// finish removes what an earlier call has doomed; nothing doomed is no error.
func (e *Engine) finish(ctx context.Context, ref Ref, w volume.Wipe) error {
	lv, tags, err := e.refer(ctx, ref, ref.Name.Doomed())
	if errors.Is(err, lvm.ErrNoVolume) {
		return nil
	}
	if err != nil {
		return err
	}
	if lv.Origin {
		return hasSnapshots(ref)
	}
	if tags.State != volume.Doomed {
		if err := e.lvm.Retag(ctx, lv, []string{tags.State.Tag()}, []string{volume.Doomed.Tag()}); err != nil {
			return err
		}
		e.after("tag doomed")
	}
	if w != volume.WipeNone {
		d, err := e.activeDevice(ctx, lv)
		if err != nil {
			return err
		}
		if err := wipe(ctx, d.Path, w); err != nil {
			return err
		}
		e.after("wipe")
	}
	if err := e.lvm.Remove(ctx, lv); err != nil {
		return err
	}
	e.after("lvremove")
	return nil
}

// hasSnapshots keeps what is not ours: LVM removes the snapshots of a volume
// together with it.
func hasSnapshots(ref Ref) error {
	return refused("volume %s has snapshots, which would be removed with it; remove them first (`lvs -o lv_name,origin %s`)", ref, ref.Group)
}
