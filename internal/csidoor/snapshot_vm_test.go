//go:build vm

package csidoor_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func (b bed) takeSnapshot(snap volume.Spec) inventory.Volume {
	b.t.Helper()
	taken, err := b.engine().MakeSnapshot(b.t.Context(), node.SnapshotRequest{Spec: snap}, func(context.Context) error { return nil })
	require.NoError(b.t, err)
	return taken
}

// restoring returns the first mount of a volume that is restored from a snapshot.
func (b bed) restoring(snap volume.Spec) call {
	b.t.Helper()
	c := b.verb("mount")
	c.Spec.Name, c.Spec.CloneOf, c.Target = "restored", snap.Name, c.Target+"-restored"
	b.t.Cleanup(func() {
		_ = exec.Command("umount", c.Target).Run()
		require.NoError(b.t, b.engine().CloseUnused(context.Background()))
		b.sh("lvremove --yes flexlvm-test/restored")
	})
	return c
}

// A snapshot is taken without the key, and restored with its source's key.
func TestEncryptedSnapshot(t *testing.T) {
	b := newEncryptedBed(t)
	b.thin()
	require.False(t, b.verb("mount").run(t))
	b.write()
	snap := b.Spec
	snap.Name, snap.CloneOf, snap.Kind = "snap", b.Spec.Name, volume.Snapshot
	t.Cleanup(func() { b.sh("lvremove --yes flexlvm-test/snap") })
	b.takeSnapshot(snap)
	require.Equal(t, b.sh("cryptsetup luksUUID "+rawLV), b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-snap"))
	b.sh("rm " + b.Target + "/f")
	require.False(t, b.verb("unmount").run(t))
	b.sh("lvremove --yes flexlvm-test/data")

	c := b.restoring(snap)
	c.Key = falseKey
	require.Contains(t, c.fails(t), "Unauthenticated")
	require.NotContains(t, b.lvs(), "restored", "refused before anything was made")
	c.Key = rightKey
	require.False(t, c.run(t))
	text, err := os.ReadFile(c.Target + "/f")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(pattern+"\n", 1000), string(text))
	require.NotEqual(t, b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-snap"), b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-restored"))
	require.Len(t, strings.Fields(b.mappings()), 1, "the snapshot itself is never opened")
}

// The full copy of a copy-on-write snapshot needs no key until it becomes a volume of its own. A wrong
// key changes nothing of it.
func TestEncryptedCopyOnWriteSnapshot(t *testing.T) {
	b := newEncryptedBed(t)
	require.False(t, b.verb("mount").run(t))
	b.write()
	snap := b.Spec
	snap.Name, snap.CloneOf, snap.Kind, snap.Reserve = "snap", b.Spec.Name, volume.Snapshot, 30
	t.Cleanup(func() { b.sh("lvremove --yes flexlvm-test/snap") })
	b.takeSnapshot(snap)
	b.sh("rm " + b.Target + "/f")
	require.False(t, b.verb("unmount").run(t))

	c := b.restoring(snap)
	c.Key = rightKey
	require.Contains(t, c.fails(t), "not copied yet")
	require.NotContains(t, b.lvs(), "restored")
	require.NoError(t, b.engine().CreateCloneAhead(t.Context(), c.Spec))
	c.Key = falseKey
	require.Contains(t, c.fails(t), "Unauthenticated")
	require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/restored"), volume.FillCopied.Tag())
	c.Key, c.Die = rightKey, 1
	for _, step := range []string{"set LUKS UUID", "luksOpen", "replay log"} { // the next call goes on after each
		require.True(t, c.run(t), step)
		require.Contains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/restored"), volume.FillCopied.Tag(), step)
	}
	c.Die = 0
	require.False(t, c.run(t))
	text, err := os.ReadFile(c.Target + "/f")
	require.NoError(t, err)
	require.Equal(t, strings.Repeat(pattern+"\n", 1000), string(text))
	require.NotEqual(t, b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-snap"), b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-restored"))
	require.NotContains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/restored"), "flexlvm.clone")
}
