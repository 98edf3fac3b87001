package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/luks"
	"github.com/flexlvm/flexlvm/internal/luks/lukstest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func tagsOfRaw(state volume.State) volume.Tags {
	t := encryptedTags(state, lukstest.UUID)
	t.FSType = volume.Raw
	return t
}

// Tags from before a raw block volume was ready may come back, and do not have it formatted: its record shows
// that a pod has had it.
func TestRecordOfARawBlockVolumeCounts(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	lv, tags := lvm.LogicalVolume{Group: "flexlvm", Name: "a", UUID: "uuid"}, tagsOfRaw(volume.Creating)
	for state, held := range map[volume.State]bool{volume.Creating: false, volume.Ready: true} {
		require.NoError(t, e.records.write(lv.Group, lv.Name, newRecord(lv.UUID, tagsOfRaw(state))))
		mayHoldData, err := e.mayHoldData(lv, tags)
		require.NoError(t, err)
		require.Equal(t, held, mayHoldData, state)
	}
	require.NoError(t, e.records.remove(lv.Group, lv.Name))
	require.NoError(t, e.records.writeEmpty(lv.Group, lv.Name))
	mayHoldData, err := e.mayHoldData(lv, tags)
	require.Error(t, err)
	require.True(t, mayHoldData, "it cannot be read")
}

// A container is not formatted again beneath blocks that were zeroed through another container. Copied blocks
// are not zeroed if the tag with their number is missing.
func TestNotesOfZeroingThatCannotBe(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, noPrograms(t))
	require.NoError(t, err)
	spec, tags := volume.Spec{Group: "flexlvm", Name: "a"}, tagsOfRaw(volume.Creating)
	tags.Zeroed = volume.MiB
	require.ErrorIs(t, e.encrypt(t.Context(), spec, lvm.Device{}, tags, luks.Key{}), ErrDamaged)
	tags.Zeroed, tags.Clone, tags.Fill = 0, tags.LUKS, volume.FillCopied
	_, err = e.finishRaw(t.Context(), spec, lvm.LogicalVolume{Group: "flexlvm", Name: "a"}, tags, luks.Key{})
	require.ErrorIs(t, err, ErrDamaged)
}
