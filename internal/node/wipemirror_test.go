package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A mirror counts as wiped only if all its copies were in use.
func TestMirrorIsWipedWhole(t *testing.T) {
	w, ctx := watchMirror(t), t.Context()
	w.syncTimeout, w.active = 0, "active"
	lv := w.lv
	for name, test := range map[string]struct {
		health, sync string
		copies       [2]string
		says         []string
	}{
		"whole":         {"", "100.00", [2]string{}, nil},
		"compared":      {"mismatches exist", "100.00", [2]string{}, nil},
		"not in sync":   {"", "12.34", [2]string{}, []string{"still being synchronised"}},
		"not known":     {"", "", [2]string{}, []string{"still being synchronised"}},
		"a disk failed": {"partial", "100.00", [2]string{"", "partial"}, []string{"copy data_rimage_1 of volume flexlvm/data cannot be used", "pv-away", "vgextend --restoremissing flexlvm DEVICE", "lvchange --refresh flexlvm/data", "docs/disk-loss.md#the-disk-is-dead"}},
		"it is back":    {"refresh needed", "100.00", [2]string{"", "refresh needed"}, []string{"copy data_rimage_1 of volume flexlvm/data cannot be used"}},
		"of all":        {"a newer health", "100.00", [2]string{}, []string{"a copy of volume flexlvm/data cannot be used"}},
	} {
		w.whole, w.sync, w.health = test.health, test.sync, test.copies
		err := w.awaitInSync(ctx, lv)
		if test.says == nil {
			require.NoError(t, err, name)
		}
		require.Equal(t, strings.HasPrefix(name, "not "), errors.Is(err, ErrSyncing), name)
		for _, says := range test.says {
			require.ErrorContains(t, err, says, name)
		}
	}
	w.whole, w.sync = "", "100.00"
	lv.UUID = "lv-2"
	require.ErrorContains(t, w.awaitInSync(ctx, lv), "it has changed")
	lv.Shape = volume.Shape{Layout: volume.Linear}
	require.NoError(t, w.awaitInSync(ctx, lv))

	w.ran, w.health = nil, [2]string{"", "partial"}
	require.ErrorContains(t, w.activateToWipe(ctx, w.lv), "copy data_rimage_1 of volume flexlvm/data cannot be used")
	w.health, w.broken = [2]string{}, true
	require.ErrorContains(t, w.activateToWipe(ctx, w.lv), "Refusing activation")
	w.broken = false
	require.NoError(t, w.activateToWipe(ctx, w.lv))
	require.Equal(t, []string{"complete", "complete", "complete"}, w.ran, "never without a copy")

	require.NoError(t, w.copyNotes.write(w.lv.UUID, copyNote{Behind: map[string]string{"copy-0": "data_rimage_0"}, Diverged: true}))
	require.NoError(t, w.activateToWipe(ctx, lv), "no longer raid1, and perhaps the old copy: nobody needs its data")
}
