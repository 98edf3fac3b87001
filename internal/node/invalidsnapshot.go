package node

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The kernel declares a copy-on-write snapshot invalid when its store overflows or fails, and writes that into the
// header of the store. If the store's disk is gone, this write fails: once the disk is back and the machine has
// rebooted, the header says that the snapshot is valid, although everything that its source has overwritten meanwhile
// shows through it. So this node notes each snapshot that it finds invalid (invalidNote), and never copies it again.

// An invalidNote records that a copy-on-write snapshot was invalid. It stays until the snapshot's volume is removed.
type invalidNote struct {
	Volume string    `json:"volume"` // GROUP/NAME, for people
	Since  time.Time `json:"since"`  // when it was found to be invalid
}

func (n invalidNote) about() string {
	if n.Volume == "" {
		return "that a snapshot is invalid"
	}
	return "that snapshot " + n.Volume + " is invalid"
}

// invalidNotes is the directory of all invalidNotes.
type invalidNotes = notes[invalidNote]

// noteInvalid durably notes a snapshot that LVM shows as invalid. It does nothing for other volumes.
func (e *Engine) noteInvalid(lv lvm.LogicalVolume) error {
	if !lv.Overflowed || e.invalidNotes.isKnown(lv.UUID) {
		return nil
	}
	return e.invalidNotes.write(lv.UUID, invalidNote{Volume: string(lv.Group) + "/" + string(lv.Name), Since: e.now()})
}

// noteInvalids is noteInvalid for the volumes of an inventory. It only logs a failure: the next inventory tries again.
func (e *Engine) noteInvalids(lvs []lvm.LogicalVolume) {
	for _, lv := range lvs {
		if err := e.noteInvalid(lv); err != nil {
			e.log.WithError(err).Warn("cannot record that a snapshot is invalid; retrying")
		}
	}
}

// wasInvalid reports whether a copy-on-write snapshot is invalid now, or is known to have been.
func (e *Engine) wasInvalid(lv lvm.LogicalVolume) bool {
	return lv.Overflowed || lv.Origin != "" && e.invalidNotes.isKnown(lv.UUID)
}

// checkCopyableNow is checkCopyable, and also refuses a copy-on-write snapshot that was invalid before.
// The caller has noted it if LVM shows it as invalid now (noteInvalid).
func (e *Engine) checkCopyableNow(spec volume.Spec, lv lvm.LogicalVolume, t volume.Tags) error {
	if err := checkCopyable(spec, lv, t); err != nil {
		return err
	}
	if lv.Origin == "" || !e.invalidNotes.mayExist(lv.UUID) {
		return nil
	}
	found := "perhaps"
	if note, err := e.invalidNotes.read(lv.UUID); err == nil && !note.Since.IsZero() {
		found = "at " + note.Since.UTC().Format(time.RFC3339)
	}
	return refused("%s %q: that snapshot was found to be invalid (%s): its store had overflowed or its disk had failed, so it lacks what its source has overwritten since, whatever LVM shows now, and cannot be restored; delete it (this node's record of that is %s)",
		volume.OptionCloneOf, spec.CloneOf, found, e.invalidNotes.file(lv.UUID))
}
