package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A raid1 volume works with a single copy. What is written meanwhile is missing from the absent copies, and
// nothing on their disks shows that. If a later boot finds only such an old copy, LVM activates the volume from
// it without a warning: the volume returns to old data, and once all copies are present again, one overwrites
// the other. So a volume with missing copies is not activated right after a boot, when a disk may only be late.
// This node also notes which copies are out of date (copyNote), and does not use a volume that has no other.

// bootGrace is how long after a boot a missing device may still appear.
const bootGrace = 5 * time.Minute

// sinceBoot returns the time since the boot of this machine, including the time that it was suspended.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// activate activates a volume. It does not activate a volume that must not be used because of its note (checkNote,
// checkConverted). It activates a raid1 volume with missing copies only once bootGrace has passed, and first notes that
// these copies are out of date.
func (e *Engine) activate(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Origin != "" { // LVM activates a copy-on-write snapshot together with its source
		source, err := e.lvm.Volume(ctx, lv.Group, lv.Origin)
		if err == nil && source.Shape.Layout == volume.Raid1 && !source.Active {
			err = e.activate(ctx, source)
		}
		if err != nil {
			return err
		}
	}
	if lv.Shape.Layout != volume.Raid1 {
		if err := e.checkConverted(lv); err != nil {
			return err
		}
		return e.lvm.Activate(ctx, lv)
	}
	if e.copyNotes.mayExist(lv.UUID) {
		// LVM calls a volume complete even if a copy was lost together with its device, which was removed from the group.
		copies, err := e.copiesOf(ctx, lv)
		if err != nil {
			return err
		}
		if err := e.checkNote(ctx, lv, copies); err != nil {
			return err
		}
	}
	copies, err := e.activateComplete(ctx, lv)
	if err != nil || copies == nil {
		return err
	}
	if err := e.checkNote(ctx, lv, copies); err != nil {
		return err
	}
	if err := e.recordOutdated(ctx, lv, copies); err != nil {
		return fmt.Errorf("volume %s/%s lacks copies and is not activated until this is recorded: %w; free space for the record, or make its directory writable", lv.Group, lv.Name, err)
	}
	e.after("note copies")
	return e.lvm.Activate(ctx, lv)
}

// activateComplete activates a raid1 volume whose copies are all there, and returns nil. If copies are missing and
// the volume may be activated without them, it does not activate it and returns its copies.
func (e *Engine) activateComplete(ctx context.Context, lv lvm.LogicalVolume) ([]lvm.Copy, error) {
	incompleteErr := e.lvm.ActivateComplete(ctx, lv)
	if incompleteErr == nil {
		return nil, nil
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return nil, errors.Join(incompleteErr, err)
	}
	if usable := usableCopies(copies); len(usable) == len(copies) || len(usable) == 0 {
		return nil, incompleteErr // degraded activation would fail as well
	}
	if wait := bootGrace - e.uptime(); wait > 0 {
		// Rounded to a minute: retries return the same text, so they count as one event.
		from := e.now().Add(wait + time.Minute).Truncate(time.Minute)
		return nil, fmt.Errorf("%w: volume %s/%s has copies on devices that are missing (%s) and that may still appear after the boot%s; from %s on it is activated without them; this call is retried",
			lvm.ErrPartial, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), restoreMissing(lv.Group), from.UTC().Format(time.RFC3339))
	}
	return copies, nil
}

// markDiverged writes the note of an active volume none of whose usable copies is known to be up to date.
func (e *Engine) markDiverged(lv lvm.LogicalVolume, note copyNote, copies []lvm.Copy) error {
	usable := usableCopies(copies)
	if note.Diverged || len(usable) == 0 || note.hasUpToDate(usable) {
		return nil
	}
	note.Diverged = true
	return e.copyNotes.write(lv.UUID, note)
}

func (e *Engine) copiesOf(ctx context.Context, lv lvm.LogicalVolume) ([]lvm.Copy, error) {
	all, err := e.lvm.Copies(ctx, lv.Group)
	if err != nil {
		return nil, err
	}
	return all.Of(lv)
}

func usableCopies(copies []lvm.Copy) (usable []lvm.Copy) {
	for _, c := range copies {
		if isUsable(c) {
			usable = append(usable, c)
		}
	}
	return usable
}

func isUsable(c lvm.Copy) bool { return !c.Missing && !c.Failed }

func namesOf(copies []lvm.Copy) string {
	names := make([]string, 0, len(copies))
	for _, c := range copies {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// missingDevices describes the missing devices of a group, for error messages.
func (e *Engine) missingDevices(ctx context.Context, g volume.Group) string {
	all, err := e.lvm.PhysicalVolumes(ctx)
	var missing []string
	for _, p := range all {
		if p.Group == g && p.Missing {
			missing = append(missing, p.UUID)
		}
	}
	if err != nil || len(missing) == 0 {
		return "see `pvs`"
	}
	return "with the UUIDs " + strings.Join(missing, ", ")
}

// recordOutdated notes which copies of a volume are out of date (updateNote): of an inactive one the missing copies,
// because it is about to be activated without them.
func (e *Engine) recordOutdated(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy) error {
	release, err := e.lockCopyNotes(ctx)
	if err != nil {
		return err
	}
	defer release()
	note, err := e.copyNotes.read(lv.UUID)
	if err != nil {
		return err
	}
	return e.updateNote(lv, note, copies, inSync(lv))
}

// updateNote notes which copies are out of date from now on. inSync reports that the volume is active and its usable
// copies are in sync with each other, so that all of them are up to date if one is. That one must be among them:
// LVM can activate an outdated copy in the place of a newer one without deactivating the volume, for example when
// a person removes the newer one's device from the group. The caller holds the lock of the notes.
func (e *Engine) updateNote(lv lvm.LogicalVolume, note copyNote, copies []lvm.Copy, inSync bool) error {
	usable := usableCopies(copies)
	upToDate := note.hasUpToDate(usable)
	partlyBuilt := lv.Active && !inSync && (len(usable) == 1 || !upToDate)
	switch {
	case len(note.divergedCopies(copies)) > 0:
		return nil // what these copies are in sync with is out of date as well
	case partlyBuilt:
		return nil // only a part of these copies may be built yet
	case !upToDate:
		return e.markDiverged(lv, note, copies)
	}
	next := note.with(copies, inSync, e.now())
	first := len(note.Behind) == 0 && len(note.UpToDate) == 0
	if first && len(next.Behind) == 0 || maps.Equal(next.Behind, note.Behind) && maps.Equal(next.UpToDate, note.UpToDate) {
		return nil
	}
	next.Volume = string(lv.Group) + "/" + string(lv.Name)
	return e.copyNotes.write(lv.UUID, next)
}

// noteCopies notes which copies of active raid1 volumes are out of date, and removes the notes of volumes that are
// complete, in sync and up to date, according to a report of LVM that was requested at seen. It skips volumes in
// copied groups, whose notes may be about the other volume. It only logs a failure: the next inventory tries again.
func (e *Engine) noteCopies(ctx context.Context, lvs []lvm.LogicalVolume, seen time.Time) {
	copied := copiedGroups(lvs)
	lvs = slices.DeleteFunc(slices.Clone(lvs), func(lv lvm.LogicalVolume) bool {
		return copied[lv.UUID] != nil || lv.Shape.Layout != volume.Raid1 || !lv.Active || lv.Health == "" && !e.copyNotes.mayExist(lv.UUID)
	})
	if len(lvs) == 0 {
		return
	}
	all, err := e.lvm.Copies(ctx, "")
	if err != nil {
		e.log.WithError(err).Warn("cannot record which copies of raid1 volumes are out of date; retrying")
		return
	}
	for _, lv := range lvs {
		copies, err := all.Of(lv)
		if err == nil {
			err = e.noteCopiesOf(ctx, lv, copies, seen)
		}
		if err != nil {
			e.log.WithError(err).WithField("volume", string(lv.Group)+"/"+string(lv.Name)).Warn("cannot record which copies of a raid1 volume are out of date; retrying")
		}
	}
}

// noteCopiesOf is noteCopies for one volume, whose copies were requested after lv.
func (e *Engine) noteCopiesOf(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy, seen time.Time) error {
	synced := inSync(lv)
	usable := usableCopies(copies)
	if note, err := e.copyNotes.read(lv.UUID); err == nil && synced && !note.allUpToDate(usable) {
		// A copy that came back after the first report is not in sync yet.
		now, err := e.lvm.Volume(ctx, lv.Group, lv.Name)
		if err != nil {
			return err
		}
		synced = now.UUID == lv.UUID && now.Active && inSync(now)
	}
	release, err := e.lockCopyNotes(ctx)
	if err != nil {
		return err
	}
	defer release()
	note, err := e.copyNotes.read(lv.UUID)
	complete := synced && lv.Health == "" && len(usable) == len(copies)
	switch {
	case complete && err != nil:
		return e.dropCopyNote(lv, note, seen)
	case err != nil:
		return err
	case complete && note.hasUpToDate(usable) && len(note.divergedCopies(copies)) == 0:
		return e.dropCopyNote(lv, note, seen)
	}
	return e.updateNote(lv, note, copies, synced)
}

// dropCopyNote removes the note of a volume that LVM has reported as complete and in sync, unless the note is newer
// than that report, which was requested at seen. The caller holds the lock of the notes.
func (e *Engine) dropCopyNote(lv lvm.LogicalVolume, note copyNote, seen time.Time) error {
	// A time in the future was written while the clock was wrong.
	if note.Since.After(seen) && !note.Since.After(e.now()) {
		return nil
	}
	return e.copyNotes.remove(lv.UUID)
}

// inSync reports whether the usable copies of an active raid1 volume are in sync with each other.
func inSync(lv lvm.LogicalVolume) bool { return lv.Sync == inSyncPercent && lv.Health != mismatches }

// lockCopyNotes locks the notes: the node daemon, the CSI driver and the FlexVolume driver change them.
func (e *Engine) lockCopyNotes(ctx context.Context) (release func(), err error) {
	return e.locks.Acquire(ctx, "copies.lock", "notes of copies")
}

const (
	// inSyncPercent is LVM's sync percentage of a volume whose copies are in sync.
	inSyncPercent = "100.00"
	// mismatches is LVM's health of a volume whose copies were found to differ when a person last compared them.
	mismatches = "mismatches exist"
)
