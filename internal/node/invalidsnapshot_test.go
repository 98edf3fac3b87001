package node

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// thickCopy returns the spec of a full copy of a copy-on-write snapshot, and that snapshot.
func thickCopy() (volume.Spec, lvm.LogicalVolume, volume.Tags) {
	spec, tags := cloneSpec(), sourceTags()
	spec.Layout, spec.ThinPool, tags.Kind = volume.Linear, "", volume.Snapshot
	return spec, lvm.LogicalVolume{Group: "flexlvm", Name: "source", UUID: "snap-uuid", Active: true, Origin: "origin", Shape: volume.Shape{Layout: volume.Linear}, Tags: tags.Strings()}, tags
}

// The disk of a store goes away, and so the kernel cannot write there that the snapshot is invalid. After a reboot with
// the disk, LVM shows the snapshot as valid.
func TestSnapshotThatIsValidAgain(t *testing.T) {
	group := &fakeGroup{lvs: []fakeLV{{name: "source", uuid: "snap-uuid", size: "4194304", attr: "swi-a-s---", tags: strings.Join(snapshotTags().Strings(), ",")}}}
	invalid := "snapshot invalid"
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(func(argv ...string) (string, error) {
		out, err := group.run(argv...)
		return strings.NewReplacer(`"origin":""`, `"origin":"data"`, `"lv_snapshot_invalid":""`, `"lv_snapshot_invalid":"`+invalid+`"`).Replace(out), err
	})
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Now: func() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }}, host)
	require.NoError(t, err)
	spec, lv, tags := thickCopy()
	require.NoError(t, e.checkCopyableNow(spec, lv, tags))
	_, _, _, err = e.source(t.Context(), spec, luks.Key{})
	require.ErrorContains(t, err, "has overflowed")
	require.True(t, e.invalidNotes.isKnown(lv.UUID), "noted before it is refused")
	require.NoError(t, e.removeNotes(lv.UUID))
	see := func() inventory.Volume {
		t.Helper()
		in, err := e.Inventory(t.Context())
		require.NoError(t, err)
		return in.Volumes[0]
	}
	require.True(t, see().Overflowed)

	invalid = ""
	require.True(t, see().Overflowed)
	c := fullCopy{spec: spec, fromID: lv.UUID}
	for _, err := range []error{e.checkCopyableNow(spec, lv, tags), e.checkSourceValid(&c, lv)} {
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, `cloneOf "source": that snapshot was found to be invalid (at 2026-11-29T12:00:00Z)`)
		require.ErrorContains(t, err, e.invalidNotes.file(lv.UUID))
	}
	_, _, _, err = e.source(t.Context(), spec, luks.Key{})
	require.ErrorContains(t, err, "was found to be invalid")
	require.NoError(t, os.WriteFile(e.invalidNotes.file(lv.UUID), nil, 0o600))
	require.ErrorContains(t, e.checkCopyableNow(spec, lv, tags), "(perhaps)", "a torn record")

	require.NoError(t, e.removeNotes(lv.UUID))
	require.False(t, see().Overflowed)
	require.NoError(t, e.checkCopyableNow(spec, lv, tags), "its volume was removed")
}

// A snapshot that becomes invalid while it is copied is noted before anything else, so that the next copy is refused, too.
func TestSnapshotThatFailsWhileItIsCopied(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	spec, lv, _ := thickCopy()
	c := fullCopy{spec: spec, fromID: lv.UUID}
	require.NoError(t, e.checkSourceValid(&c, lv))
	lv.Overflowed = true
	require.ErrorContains(t, e.checkSourceValid(&c, lv), "has overflowed")
	lv.Overflowed = false
	require.ErrorContains(t, e.checkSourceValid(&c, lv), "was found to be invalid")
	lv.UUID, c.fromID = "another", "another"
	require.NoError(t, e.checkSourceValid(&c, lv))
	lv.Origin = ""
	require.False(t, e.wasInvalid(lv))
}

// If it is not known whether a snapshot was invalid, it is not copied.
func TestNotesOfInvalidSnapshotsThatCannotBeUsed(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	e.invalidNotes = invalidNotes(os.DevNull)
	spec, lv, tags := thickCopy()
	require.ErrorIs(t, e.checkCopyableNow(spec, lv, tags), ErrRefused)
	require.False(t, e.wasInvalid(lv), "others go on as usual")
	lv.Overflowed = true
	require.ErrorContains(t, e.noteInvalid(lv), "note that snapshot flexlvm/source is invalid")
}
