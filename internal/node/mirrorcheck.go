package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ErrConverted: a volume was converted from raid1, and may consist of a copy that was out of date.
var ErrConverted = errors.New("volume may hold old data")

const (
	// outdatedDoc is the runbook for volumes that are not used because of their notes.
	outdatedDoc = "docs/disk-loss.md#a-copy-that-is-out-of-date"
	newerGone   = "no copy that is known to be up to date is part of the volume any more: read " + outdatedDoc
)

// checkCopies returns an error if an active volume must not be used because of its note (checkNote, checkConverted),
// for example because the host has activated it at boot. A copy-on-write snapshot shares data with its source, so the
// source is checked too. For a snapshot it queries LVM; for a raid1 volume only if that has a note.
func (e *Engine) checkCopies(ctx context.Context, lv lvm.LogicalVolume) error {
	if lv.Origin != "" {
		source, err := e.lvm.Volume(ctx, lv.Group, lv.Origin)
		if err == nil {
			err = e.checkCopies(ctx, source)
		}
		if err != nil {
			return fmt.Errorf("check the source of snapshot %s/%s: %w", lv.Group, lv.Name, err)
		}
	}
	if lv.Shape.Layout != volume.Raid1 {
		return e.checkConverted(lv)
	}
	if !e.copyNotes.mayExist(lv.UUID) {
		return nil
	}
	copies, err := e.copiesOf(ctx, lv)
	if err != nil {
		return err
	}
	if err := e.checkNote(ctx, lv, copies); err != nil {
		lv.Active = true // it may have been activated since lv was read; its sync is unknown then
		return errors.Join(err, e.recordOutdated(ctx, lv, copies))
	}
	return nil
}

// checkConverted returns an error if a volume that is not raid1 has a note: it was converted from raid1, and consists
// of one of its former copies. Which one is unknown: a person may have removed the others before the daemon saw which
// copies were in use. A volume whose note cannot be looked up is used, as most volumes were never raid1.
func (e *Engine) checkConverted(lv lvm.LogicalVolume) error {
	if lv.Shape.Layout == volume.Raid1 || !e.copyNotes.isKnown(lv.UUID) {
		return nil
	}
	since := "an unknown time"
	if note, err := e.copyNotes.read(lv.UUID); err == nil {
		since = note.Since.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("%w: volume %s/%s is no longer raid1, and had a copy that lacked what was written after %s, while the volume was in use; whether it consists of that copy now is unknown to this node: decide whether its data is recent enough (%s), and to use it, remove %s",
		ErrConverted, lv.Group, lv.Name, since, outdatedDoc, e.copyNotes.file(lv.UUID))
}

// checkNote returns an error if a volume must not be used because of its note: an outdated copy may overwrite the
// others, or no usable copy is known to be up to date. A note that cannot be read only matters while copies are
// missing: otherwise, the kernel finds the newest of them itself.
func (e *Engine) checkNote(ctx context.Context, lv lvm.LogicalVolume, copies []lvm.Copy) error {
	note, err := e.copyNotes.read(lv.UUID)
	usable, diverged := usableCopies(copies), note.divergedCopies(copies)
	switch {
	case len(diverged) > 0:
		return e.divergedErr(lv, note, copies, diverged)
	case err != nil && len(usable) == len(copies):
		return nil
	case err != nil:
		return fmt.Errorf("volume %s/%s lacks copies, and is not used before it is known whether the others are up to date: %w; bring the missing devices back, or inspect that file and remove it", lv.Group, lv.Name, err)
	case len(usable) == 0:
		return fmt.Errorf("%w: no copy of volume %s/%s can be used (missing: %s); see `lvs -a -o +lv_health_status %s`, and bring the devices back%s", lvm.ErrPartial, lv.Group, lv.Name, e.missingDevices(ctx, lv.Group), lv.Group, restoreMissing(lv.Group))
	case note.hasUpToDate(usable):
		return nil
	}
	since := note.Since.UTC().Format(time.RFC3339)
	lacks := "which lacks what was written after " + since + ", while the volume was in use"
	if !slices.ContainsFunc(usable, note.isBehind) {
		lacks = "which is unknown to this node: it was made after " + since + ", perhaps from a copy that was out of date by then"
	}
	return fmt.Errorf("%w: only copy %s of volume %s/%s can be used, %s; %s; or, to use the old data and lose what was written since, remove %s",
		lvm.ErrPartial, namesOf(usable), lv.Group, lv.Name, lacks, e.newerData(ctx, lv, note, copies), e.copyNotes.file(lv.UUID))
}

// newerData says what to do to use a copy that is up to date and not usable now, for error messages.
func (e *Engine) newerData(ctx context.Context, lv lvm.LogicalVolume, note copyNote, copies []lvm.Copy) string {
	if note.mayReturn(copies) {
		return fmt.Sprintf("the devices with newer data are missing (%s): bring them back%s", e.missingDevices(ctx, lv.Group), restoreMissing(lv.Group))
	}
	return newerGone
}

// divergedErr returns the error for a volume with present copies that are out of date and have been active alone since. It
// can only be used without them, because the kernel may take them for the newest, or by a person's decision.
func (e *Engine) divergedErr(lv lvm.LogicalVolume, note copyNote, copies, diverged []lvm.Copy) error {
	others := "to use the others, take its device away from this node, and the volume is used without it"
	if !note.mayReturn(copies) {
		others = newerGone
	}
	return fmt.Errorf("%w: copy %s of volume %s/%s is recorded as out of date since %s, and has been active without the others since, so the kernel may take it for the newest copy and overwrite the others: decide which copy holds the data that is needed; %s; to use this copy, and lose what only the others hold, remove %s",
		lvm.ErrPartial, namesOf(diverged), lv.Group, lv.Name, note.Since.UTC().Format(time.RFC3339), others, e.copyNotes.file(lv.UUID))
}
