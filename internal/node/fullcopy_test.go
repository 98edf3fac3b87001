package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A copy of a snapshot is only valid if, after the last byte was read, the snapshot is still the same and
// valid.
func TestFullCopyOfWhatIsNotWholeAtItsEnd(t *testing.T) {
	spec, whole, _ := thickCopy()
	c := fullCopy{spec: spec, fromID: whole.UUID}
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	require.NoError(t, e.checkSourceValid(&c, whole))
	for name, change := range map[string]func(*lvm.LogicalVolume){
		"another":       func(lv *lvm.LogicalVolume) { lv.UUID = "another" },
		"inactive":      func(lv *lvm.LogicalVolume) { lv.Active = false },
		"split":         func(lv *lvm.LogicalVolume) { lv.Origin = "" },
		"overflowed":    func(lv *lvm.LogicalVolume) { lv.Overflowed = true },
		"not ours":      func(lv *lvm.LogicalVolume) { lv.Tags = nil },
		"being removed": func(lv *lvm.LogicalVolume) { lv.Name = lv.Name.Doomed() },
	} {
		lv := whole
		change(&lv)
		require.ErrorIs(t, e.checkSourceValid(&c, lv), ErrRefused, name)
		require.NoError(t, e.removeNotes(lv.UUID))
	}
}

// A part of a full copy cannot be interrupted, so at any rate it takes no longer than a call holds the
// volume's lock. Other calls wait for longer than that.
func TestPartOfAFullCopy(t *testing.T) {
	require.Equal(t, copyPart, partAt(0), "as fast as the disk can")
	require.Equal(t, copyPart, partAt(100*volume.MiB))
	require.Equal(t, 3*volume.MiB, partAt(volume.MiB))
	require.Equal(t, copyStep, partAt(1))
	require.Greater(t, roundLockTimeout, holdTime)
}

// identified is XFS with a UUID.
type identified struct {
	xfsKind
	id string
}

func (i identified) uuid(string) (string, error) { return i.id, nil }

// A full copy counts as complete until it is about to get its own UUID, and no longer once it may have it.
func TestFullCopyIsWholeUntilItGetsItsUUID(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	group, changed := &fakeGroup{device: disk}, []string(nil)
	host := noPrograms(t)
	host.Unkillable = commandtest.Func(func(argv ...string) (string, error) {
		if argv[0] == "lvchange" {
			changed = append(changed, strings.Join(argv, " "))
		}
		return group.run(argv...)
	})
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), Settle: func(volume.Group, volume.Name) {}}, host)
	require.NoError(t, err)
	lv := lvm.LogicalVolume{Group: "flexlvm", Name: "copy", UUID: "uuid"}
	f := openedVolume{tags: halfTags(), content: content{filesystem: identified{id: copyFS}}}
	require.NoError(t, e.untagCopied(t.Context(), lv, &f), "a thin copy has no such tag")
	f.tags.Fill = volume.FillCopied
	require.ErrorContains(t, e.untagCopied(t.Context(), lv, &f), "it should hold the file system "+sourceFS)
	require.Equal(t, volume.FillCopied, f.tags.Fill)
	require.Empty(t, changed)
	f.content.filesystem = identified{id: sourceFS}
	require.NoError(t, e.untagCopied(t.Context(), lv, &f))
	require.Empty(t, f.tags.Fill)
	require.Len(t, changed, 1)
	require.Contains(t, changed[0], "--deltag flexlvm.fill=copied")
}
