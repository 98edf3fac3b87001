package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A person has made a mirror with an old copy linear. It may consist of that copy, whether or not the daemon has seen
// the old copy in use alone.
func TestMirrorThatIsConvertedToLinear(t *testing.T) {
	for name, seen := range map[string]bool{"the daemon saw the old copy in use": true, "it did not": false} {
		w, ctx := watchMirror(t), t.Context()
		w.look(true, "partial", "100.00", "partial", "")
		if seen {
			w.look(true, "", "100.00", "", "removed")
		}
		require.Equal(t, seen, w.note().Diverged, name)
		linear := w.lv
		linear.Shape, w.ran = volume.Shape{Layout: volume.Linear}, nil
		for _, err := range []error{w.activate(ctx, linear), w.checkCopies(ctx, linear)} {
			require.ErrorIs(t, err, ErrConverted, name)
			require.NotContains(t, err.Error(), lvm.ErrPartial.Error(), name)
			require.ErrorContains(t, err, "volume flexlvm/data is no longer raid1, and had a copy that lacked what was written after 2026-05-04T03:02:01Z", name)
			require.ErrorContains(t, err, "remove "+w.copyNotes.file(linear.UUID), name)
		}
		require.Empty(t, w.ran, name)
		w.noteCopies(ctx, []lvm.LogicalVolume{linear}, w.now())
		require.True(t, w.copyNotes.mayExist(linear.UUID), name)

		w.uuids = [2]string{"copy-2", "copy-3"} // made raid1 again, from unknown data
		w.look(true, "", "100.00", "", "")
		require.ErrorContains(t, w.checkCopies(ctx, w.lv), "which is unknown to this node", name)
		require.NoError(t, w.copyNotes.remove(linear.UUID), "a person accepts it")
		require.NoError(t, w.activate(ctx, linear), name)
		require.NoError(t, w.checkCopies(ctx, linear), name)
	}
}

// A volume that was never raid1 does not depend on the directory of notes. A note that cannot be read keeps a converted
// volume from being used.
func TestLinearVolumeWhoseNoteCannotBeRead(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.lv.Shape = volume.Shape{Layout: volume.Linear}
	whole := w.copyNotes
	w.copyNotes = copyNotes(os.DevNull)
	require.NoError(t, w.activate(ctx, w.lv))
	require.NoError(t, w.checkCopies(ctx, w.lv))
	w.copyNotes = whole
	require.NoError(t, os.MkdirAll(filepath.Dir(w.copyNotes.file("x")), 0o700))
	require.NoError(t, os.WriteFile(w.copyNotes.file(w.lv.UUID), []byte("{"), 0o600))
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "after an unknown time")
}

// The newer copy's disk was removed from the group. Taking the old copy away would leave nothing to use.
func TestNewerCopyThatWasRemovedFromTheGroup(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.look(true, "partial", "100.00", "partial", "")
	w.health = [2]string{"", "removed"}
	err := w.checkNote(ctx, w.lv, w.copies())
	require.ErrorContains(t, err, "only copy data_rimage_0 of volume flexlvm/data can be used, which lacks what was written after 2026-05-04T03:02:01Z")
	require.ErrorContains(t, err, "no copy that is known to be up to date is part of the volume any more: read "+outdatedDoc)
	require.NotContains(t, err.Error(), "bring them back")
	w.ran = nil
	require.ErrorContains(t, w.activate(ctx, w.lv), "only copy data_rimage_0", "LVM calls the volume complete")
	require.Empty(t, w.ran)
	w.look(true, "", "100.00", "", "removed")
	err = w.checkCopies(ctx, w.lv)
	require.ErrorContains(t, err, "has been active without the others since")
	require.ErrorContains(t, err, "no copy that is known to be up to date is part of the volume any more: read "+outdatedDoc)
	require.NotContains(t, err.Error(), "take its device away")
	w.health = [2]string{"", "partial"}
	require.ErrorContains(t, w.checkCopies(ctx, w.lv), "to use the others, take its device away from this node")
}

// The disk with the newer copy drops out while the old copy is updated from it, and the pod starts again. Nobody has
// used the old copy alone, so both are used once the disk is back.
func TestNewerCopyThatIsAwayWhileTheOtherIsUpdated(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.look(true, "partial", "100.00", "partial", "")
	w.look(true, "partial", "12.34", "", "partial")
	for _, active := range []bool{true, false} {
		lv := w.lv
		if lv.Active = active; !active {
			lv.Sync = "" // it was read before its activation
		}
		err := w.checkCopies(ctx, lv)
		require.ErrorContains(t, err, "only copy data_rimage_0 of volume flexlvm/data can be used")
		require.ErrorContains(t, err, "bring them back (if `pvs -o +pv_missing` still shows a disk that is back as missing: `vgextend --restoremissing flexlvm DEVICE`)")
		require.False(t, w.note().Diverged, active)
	}
	w.look(false, "", "", "", "")
	require.NoError(t, w.activate(ctx, w.lv))
}
