package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// recordMountable writes the record from which on this node never formats the volume again. A mount calls
// it before a pod gets the volume, CreateAhead before any pod exists. It also makes the volume ready, unless
// that is done after the reply (Config.Settle).
//
// A volume in state creating is handed out only once the record is written, because the record alone
// keeps it from being formatted again. A ready volume is handed out even if the directory of the
// records is full or read-only, unless that would make its next mount smaller (recordedSmaller).
//
// An encrypted volume is always made ready first: if its record and its header were lost, nothing on
// its device would show that a pod has had it, as mayFormat finds for other volumes. A raw block
// volume is, too, because nothing on its device ever shows that.
func (e *Engine) recordMountable(ctx context.Context, f openedVolume) error {
	g, n := f.device.Group, f.device.Name
	if !f.recorded {
		if f.tags.State == volume.Ready {
			// Its tags may be from a killed call that did not flush them, and the record lies on another
			// disk.
			if err := e.lvm.Flush(ctx, g, n); err != nil {
				return err
			}
		}
		err := e.records.write(g, n, newRecord(f.device.VolumeUUID, f.tags))
		switch {
		case err == nil:
			e.after("write record")
		case f.tags.State == volume.Creating:
			return fmt.Errorf("volume %s/%s is new and is not handed out before it is on record: %w; make room for it, or make the directory writable", g, n, err)
		case e.recordedSmaller(f):
			return fmt.Errorf("volume %s/%s is not handed out before its size is on record, or its next mount would be smaller: %w; make room for it, or make the directory writable", g, n, err)
		default:
			e.writeEmptyRecord(g, n, err)
		}
	}
	if f.tags.State == volume.Creating && (e.settle == nil || f.tags.LUKS != "" || f.tags.FSType == volume.Raw) {
		return e.makeReady(ctx, lvm.LogicalVolume{Group: g, Name: n, UUID: f.device.VolumeUUID}, f.tags)
	}
	return nil
}

// touch sets a volume's last use. If that fails, the volume looks idle for longer than it was, which is no
// reason to refuse the mount.
func (e *Engine) touch(g volume.Group, n volume.Name) {
	if err := e.records.touch(g, n, e.now()); err != nil {
		e.logUnrecorded(g, n, err)
	}
}

// writeEmptyRecord writes an empty record in place of one that could not be written and is not needed for
// safety, and logs the error. An empty record still shows that the volume existed, and fits on most full
// disks.
func (e *Engine) writeEmptyRecord(g volume.Group, n volume.Name, err error) {
	e.logUnrecorded(g, n, errors.Join(err, e.records.writeEmpty(g, n)))
}

// logUnrecorded logs a failed write of a volume's record that is not needed for safety.
func (e *Engine) logUnrecorded(g volume.Group, n volume.Name, err error) {
	e.log.WithError(err).WithField("volume", string(g)+"/"+string(n)).
		Warn("this node's record of the volume could not be written; make room in its directory, or make that writable")
}

// makeReady moves a recorded volume from state creating to ready, first in its tags and then in its record.
func (e *Engine) makeReady(ctx context.Context, lv lvm.LogicalVolume, t volume.Tags) error {
	if !volume.MayMove(t.State, volume.Ready, volume.ByEngine) {
		return refused("volume %s/%s is %s and cannot become ready", lv.Group, lv.Name, t.State)
	}
	if err := e.retag(ctx, lv, []string{volume.Creating.Tag()}, []string{volume.Ready.Tag()}); err != nil {
		return err
	}
	e.after("tag ready")
	t.State = volume.Ready
	if err := e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, t)); err != nil {
		// A mount goes by a record in state creating as by a ready one. Of a raw block volume it asks LVM
		// (record.mountable).
		e.logUnrecorded(lv.Group, lv.Name, err)
		return nil
	}
	e.after("record ready")
	return nil
}

// Settle sets the state in a volume's tags to ready if this node has a record of the volume. It may be called
// at any time, for any volume; if there is nothing to settle, it does nothing.
func (e *Engine) Settle(ctx context.Context, g volume.Group, n volume.Name) error {
	release, err := e.lockVolume(ctx, g, n)
	if err != nil {
		return err
	}
	defer release()
	rec, err := e.records.read(g, n)
	if err != nil || rec.State != volume.Creating {
		return nil // never recorded, settled already, or released meanwhile
	}
	lv, err := e.lvm.Volume(ctx, g, n)
	if err != nil {
		return err
	}
	tags, err := ownedTags(lv)
	if err != nil {
		return err
	}
	if tags.State == volume.Ready && rec.VolumeUUID == lv.UUID { // the call that tagged it was killed before it wrote the record
		if err := e.lvm.Flush(ctx, g, n); err != nil {
			return err
		}
		return e.records.write(g, n, newRecord(lv.UUID, tags))
	}
	_, err = e.ensureSettled(ctx, lv, tags)
	return err
}

// ensureSettled makes a recorded volume ready in its tags, and returns them: a recorded volume in
// state creating is ready in all but its tags.
func (e *Engine) ensureSettled(ctx context.Context, lv lvm.LogicalVolume, tags volume.Tags) (volume.Tags, error) {
	if tags.State != volume.Creating {
		return tags, nil
	}
	recorded, err := e.isRecorded(lv)
	if err != nil {
		return tags, fmt.Errorf("%w; its next mount writes it again", err)
	}
	if !recorded || e.givenUpUnzeroed(lv, tags) {
		return tags, nil
	}
	if err := e.makeReady(ctx, lv, tags); err != nil {
		return tags, err
	}
	tags.State = volume.Ready
	return tags, nil
}

// givenUpUnzeroed reports whether the record of a raw block volume in state creating is not from a mount,
// which writes it once the volume is zeroed, but from a release that may have been killed before it changed
// the tags. Such a volume may expose data that others have left on the disk.
//
// It is false for all other volumes: a pod may have written to one whose tags still say creating
// (Config.Settle), and a release of that leaves the same record and tags if it is killed there.
func (e *Engine) givenUpUnzeroed(lv lvm.LogicalVolume, tags volume.Tags) bool {
	if tags.FSType != volume.Raw {
		return false
	}
	rec, err := e.records.read(lv.Group, lv.Name)
	return err != nil || rec.State != volume.Creating && rec.State != volume.Ready
}

// isRecorded reports whether this node has a record of this very volume, which may then hold data. A record
// that cannot be read counts as one of this volume: the result is then true, with the error.
func (e *Engine) isRecorded(lv lvm.LogicalVolume) (bool, error) {
	rec, err := e.records.read(lv.Group, lv.Name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return true, err
	}
	return rec.VolumeUUID == lv.UUID, nil
}
