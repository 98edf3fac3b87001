package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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

// activationOf returns what identifies the activation of a volume: the boot and the number that the kernel has
// given to its block device. It is empty if that is unknown, as before Linux 5.15.
func activationOf(lv lvm.LogicalVolume) string {
	d, err := lvm.FindDevice(lv.Group, lv.Name)
	if err != nil {
		return ""
	}
	boot, bootErr := os.ReadFile("/proc/sys/kernel/random/boot_id")
	disk, diskErr := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/diskseq", unix.Major(d.Number), unix.Minor(d.Number)))
	if bootErr != nil || diskErr != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + "/" + strings.TrimSpace(string(disk))
}

// sinceBoot returns the time since the boot of this machine, including the time that it was suspended.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// activate activates a volume. It activates a raid1 volume with missing copies only once bootGrace has passed,
// and only if a present copy is up to date. Before that, it notes that the missing copies are out of date.
func (e *Engine) activate(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Of != "" { // LVM activates a copy-on-write snapshot together with its source
		source, err := e.lvm.Volume(ctx, lv.Group, lv.Of)
		if err == nil && source.Shape.Layout == volume.Raid1 && !source.Active {
			err = e.activate(ctx, source)
		}
		if err != nil {
			return err
		}
	}
	if lv.Shape.Layout != volume.Raid1 {
		return e.lvm.Activate(ctx, lv)
	}
	if err := e.checkStale(ctx, lv); err != nil {
		return err
	}
	copies, err := e.activateWhole(ctx, lv)
	if err != nil || copies == nil {
		return err
	}
	if err := e.checkUpToDate(ctx, lv, copies); err != nil {
		return err
	}
	if err := e.noteBehind(ctx, lv, copies, false); err != nil {
		return fmt.Errorf("volume %s/%s lacks copies and is not activated until this is recorded: %w; free space for the record, or make its directory writable", lv.Group, lv.Name, err)
	}
	e.after("note copies")
	return e.lvm.Activate(ctx, lv)
}

// activateToWipe activates a volume whose data nobody needs. A copy that is out of date is wiped like any other.
// One that may only be late after a boot is waited for, or it would be removed without having been wiped.
func (e *Engine) activateToWipe(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Raid1 {
		return e.activate(ctx, lv)
	}
	if copies, err := e.activateWhole(ctx, lv); err != nil || copies == nil {
		return err
	}
	return e.lvm.Activate(ctx, lv)
}

// activateWhole activates a raid1 volume whose copies are all there. If it may be activated without the missing
// ones, it returns the volume's copies instead.
func (e *Engine) activateWhole(ctx context.Context, lv lvm.LogicalVolume) ([]lvm.Copy, error) {
	notWhole := e.lvm.ActivateWhole(ctx, lv)
	if notWhole == nil {
		return nil, nil
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return nil, errors.Join(notWhole, err)
	}
	if usable := present(copies); len(usable) == len(copies) || len(usable) == 0 {
		return nil, notWhole // degraded activation would fail as well
	}
	if wait := bootGrace - e.uptime(); wait > 0 {
		// Rounded to a minute: retries return the same text, so they count as one event.
		from := e.now().Add(wait + time.Minute).Truncate(time.Minute)
		return nil, fmt.Errorf("%w: volume %s/%s has copies on devices that are missing (%s) and that may still appear after the boot; from %s on it is activated without them; this call is retried",
			lvm.ErrPartial, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), from.UTC().Format(time.RFC3339))
	}
	return copies, nil
}

// checkCopies returns an error if an active raid1 volume lacks copies and all the others are out of date: the
// host may have activated it at boot. It queries LVM only for a volume with a note.
func (e *Engine) checkCopies(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Shape.Layout != volume.Raid1 || !e.copyNotes.exists(lv.UUID) {
		return nil
	}
	if err := e.checkStale(ctx, lv); err != nil {
		return err
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return err
	}
	if len(present(copies)) == len(copies) {
		return nil // the kernel finds the newest of them itself
	}
	if err := e.checkUpToDate(ctx, lv, copies); err != nil {
		return errors.Join(err, e.noteStale(ctx, lv, copies))
	}
	return nil
}

// checkStale returns an error if a present copy is out of date and has been active alone since. The volume can only
// be used without such a copy: the kernel may take it for the newest.
func (e *Engine) checkStale(ctx context.Context, lv lvm.LogicalVolume) error {
	note, err := e.copyNotes.read(lv.UUID)
	if err != nil || !note.Stale {
		return nil // checkUpToDate reports a note that cannot be read
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return err
	}
	old := note.old(copies)
	if len(old) == 0 {
		return nil
	}
	return fmt.Errorf("%w: copy %s of volume %s/%s was not written to after %s, and has been active alone since, so the kernel may take it for the newest copy and overwrite the others: take its device away from this node, and the volume is used without it; or, to use the old data and lose what was written since, remove %s",
		lvm.ErrPartial, strings.Join(old, ", "), lv.Group, lv.Name, note.Since.UTC().Format(time.RFC3339), e.copyNotes.file(lv.UUID))
}

// noteStale notes that only copies that are out of date are active.
func (e *Engine) noteStale(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy) error {
	release, err := e.lockCopyNotes(ctx)
	if err != nil {
		return err
	}
	defer release()
	note, err := e.copyNotes.read(lv.UUID)
	if err != nil {
		return err
	}
	return e.markStale(lv, note, copies)
}

// markStale writes the note of an active volume of which only copies that are out of date are usable.
func (e *Engine) markStale(lv lvm.LogicalVolume, note copyNote, copies []lvm.Copy) error {
	if note.Stale || len(present(copies)) == 0 || isCurrent(copies, note.Behind) {
		return nil
	}
	if activation := e.activation(lv); activation != "" && activation == note.Current {
		return nil // a copy may have become up to date before the others failed: the next inventory decides
	}
	note.Stale = true
	return e.copyNotes.write(lv.UUID, note)
}

func (e *Engine) copiesOf(ctx context.Context, lv lvm.LogicalVolume) ([]lvm.Copy, error) {
	all, err := e.lvm.Copies(ctx, lv.Group)
	if err != nil {
		return nil, err
	}
	return all.Of(lv)
}

// present returns the usable copies.
func present(copies []lvm.Copy) (usable []lvm.Copy) {
	for _, c := range copies {
		if !c.Missing && !c.Failed {
			usable = append(usable, c)
		}
	}
	return usable
}

// checkUpToDate returns an error if all usable copies are noted as out of date, or if the note cannot be read.
func (e *Engine) checkUpToDate(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy) error {
	note, err := e.copyNotes.read(lv.UUID)
	if err != nil {
		return fmt.Errorf("volume %s/%s lacks copies, and is not used before it is known whether the others are up to date: %w; bring the missing devices back, or inspect that file and remove it", lv.Group, lv.Name, err)
	}
	var old []string
	for _, c := range present(copies) {
		if note.Behind[c.UUID] == "" {
			return nil
		}
		old = append(old, c.Name)
	}
	if len(old) == 0 {
		return fmt.Errorf("%w: no copy of volume %s/%s can be used (missing: %s); see `lvs -a -o +lv_health_status %s`", lvm.ErrPartial, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), lv.Group)
	}
	return fmt.Errorf("%w: only copy %s of volume %s/%s can be used, which was not written to after %s, while the volume was in use; the devices with newer data are missing (%s): bring them back; or, to use the old data and lose what was written since, remove %s",
		lvm.ErrPartial, strings.Join(old, ", "), lv.Group, lv.Name, note.Since.UTC().Format(time.RFC3339), e.missingDevices(ctx, lv.Group), e.copyNotes.file(lv.UUID))
}

// missingDevices describes the missing devices of a group, for error messages.
func (e *Engine) missingDevices(ctx context.Context, g volume.Group) string {
	missing, err := e.lvm.MissingDevices(ctx, g)
	if err != nil || len(missing) == 0 {
		return "see `pvs`"
	}
	return "with the UUIDs " + strings.Join(missing, ", ")
}

// noteBehind notes the copies that are out of date from now on. inSync reports that the volume is active and
// its copies in use are in sync with each other, so that none of those copies is out of date any longer.
func (e *Engine) noteBehind(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy, inSync bool) error {
	release, err := e.lockCopyNotes(ctx)
	if err != nil {
		return err
	}
	defer release()
	note, err := e.copyNotes.read(lv.UUID)
	if err != nil {
		return err
	}
	usable := present(copies)
	switch {
	case len(note.old(copies)) > 0:
		return nil // what these copies are in sync with is old as well
	case lv.Active && !inSync && len(usable) == 1:
		return nil // only a part of it may be built yet
	}
	activation := ""
	if lv.Active {
		activation = e.activation(lv)
	}
	wasCurrent := inSync && activation != "" && activation == note.Current && len(usable) > 0
	if !wasCurrent && !isCurrent(copies, note.Behind) {
		return e.markStale(lv, note, copies)
	}
	next := note.with(behindNow(copies, note.Behind, inSync), cmp.Or(activation, note.Current), e.now())
	if maps.Equal(next.Behind, note.Behind) && (next.Current == note.Current || len(next.Behind) == 0) {
		return nil
	}
	next.Volume = string(lv.Group) + "/" + string(lv.Name)
	return e.copyNotes.write(lv.UUID, next)
}

// isCurrent reports whether a usable copy is up to date. Only such a copy can bring another up to date. If only
// old copies are usable, such as after a person or the host activated them, the note stays as it is.
func isCurrent(copies []lvm.Copy, before map[string]string) bool {
	return slices.ContainsFunc(present(copies), func(c lvm.Copy) bool { return before[c.UUID] == "" })
}

// behindNow returns the copies that are out of date while the others are in use. before are the copies that were
// out of date until now. It is pure.
func behindNow(copies []lvm.Copy, before map[string]string, inSync bool) map[string]string {
	behind := map[string]string{}
	for _, c := range copies {
		if c.Missing || c.Failed || before[c.UUID] != "" && !inSync {
			behind[c.UUID] = c.Name
		}
	}
	return behind
}

// noteCopies notes which copies of active raid1 volumes are out of date, and removes the notes of volumes that are
// complete and in sync, according to a report of LVM that was requested at seen. It only logs a failure: the next
// inventory tries again.
func (e *Engine) noteCopies(ctx context.Context, lvs []lvm.LogicalVolume, seen time.Time) {
	var degraded []lvm.LogicalVolume
	for _, lv := range lvs {
		switch {
		case lv.Shape.Layout != volume.Raid1 || !lv.Active:
		case lv.Health != "" || lv.Sync != inSyncPercent && e.copyNotes.exists(lv.UUID):
			degraded = append(degraded, lv)
		case e.copyNotes.exists(lv.UUID):
			if err := e.dropCopyNote(ctx, lv, seen); err != nil {
				e.log.WithError(err).WithField("volume", string(lv.Group)+"/"+string(lv.Name)).Warn("the copies of the volume are in sync again, but the record that they are not cannot be removed; retrying")
			}
		}
	}
	if len(degraded) == 0 {
		return
	}
	all, err := e.lvm.Copies(ctx, "")
	if err != nil {
		e.log.WithError(err).Warn("cannot record which copies of degraded volumes are out of date; retrying")
		return
	}
	for _, lv := range degraded {
		copies, err := all.Of(lv)
		if err == nil {
			err = e.noteBehind(ctx, lv, copies, lv.Sync == inSyncPercent && lv.Health != mismatches)
		}
		if err != nil {
			e.log.WithError(err).WithField("volume", string(lv.Group)+"/"+string(lv.Name)).Warn("cannot record which copies of a degraded volume are out of date; retrying")
		}
	}
}

// dropCopyNote removes the note of a volume that LVM has reported as complete and in sync, unless the note is newer
// than that report, which was requested at seen.
func (e *Engine) dropCopyNote(ctx context.Context, lv lvm.LogicalVolume, seen time.Time) error {
	if note, err := e.copyNotes.read(lv.UUID); err == nil && note.Stale {
		if copies, err := e.copiesOf(ctx, lv); err != nil || len(note.old(copies)) > 0 {
			return err
		}
	}
	release, err := e.lockCopyNotes(ctx)
	if err != nil {
		return err
	}
	defer release()
	// A time in the future was written while the clock was wrong.
	if note, err := e.copyNotes.read(lv.UUID); err == nil && note.Since.After(seen) && !note.Since.After(e.now()) {
		return nil
	}
	return e.copyNotes.remove(lv.UUID)
}

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
