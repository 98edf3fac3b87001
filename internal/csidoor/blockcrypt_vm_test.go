//go:build vm

package csidoor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// rawGrown needs more extents than rawSize in every layout.
const rawGrown = 13*mib + 3*volume.Block

func newEncryptedRawBed(t *testing.T) bed {
	t.Helper()
	b := newEncryptedBed(t)
	b.Spec.FSType, b.Spec.Size = volume.Raw, rawSize
	return b
}

// dirty fills the extents that the next linear volume gets with the data of an earlier volume.
func (b bed) dirty() {
	b.t.Helper()
	b.sh("lvcreate --yes -q -Wn -Zn -l12 -n dirty flexlvm-test; yes | head -c 48M | dd of=/dev/flexlvm-test/dirty bs=1M conv=fsync status=none; lvremove --yes -q flexlvm-test/dirty")
}

func (b bed) writePattern(size volume.Bytes) {
	b.t.Helper()
	b.sh(fmt.Sprintf("yes %s | head -c %d | dd of=%s bs=1M conv=notrunc,fsync status=none", pattern, int64(size), b.Target))
}

// requirePattern checks that a device has the size and begins with the pattern. The rest must be zeros,
// unless noise is set.
func (b bed) requirePattern(path string, written, size volume.Bytes, noise bool) {
	b.t.Helper()
	require.Equal(b.t, fmt.Sprint(int64(size)), b.sh("blockdev --getsize64 "+path))
	b.sh(fmt.Sprintf("yes %s | head -c %d | cmp -n %[2]d - %[3]s", pattern, int64(written), path))
	if !noise {
		b.sh(fmt.Sprintf("cmp -n %d -i %d:0 %s /dev/zero", int64(size-written), int64(written), path))
	}
}

func (b bed) left() string {
	b.t.Helper()
	return b.sh("ls /dev/mapper | grep -e flexlvm-block -e flexlvm-crypt || true")
}

// The first mount is killed after some of its steps, on extents that hold another volume's data. The
// pod sees zeros in the size it asked for, its data cannot be read from the device below, and a call
// with a wrong key or none changes nothing. The skipped steps are covered by
// TestBlockPublishKilledAfterEveryStep, and those of encryption by the tests of encrypted file systems
// and of snapshots.
func TestEncryptedBlockPublishKilledAfterSomeSteps(t *testing.T) {
	b := newEncryptedRawBed(t)
	deaths := afterSomeSteps(t, 2, b.verb("mount"), func() {
		b.clear()
		b.dirty()
	}, func(die int) {
		require.Equal(t, "data", b.lvs(), "one volume after death %d", die)
		b.requirePattern(b.Target, 0, rawSize, false)
	})
	require.Equal(t, 12, deaths, "lvcreate, luksFormat, set LUKS UUID, luksOpen; zero, tag zeroed, mkfs; make mapping; write record, tag ready, record ready; move mount")

	b.writePattern(rawSize)
	b.requirePattern(b.Target, rawSize, rawSize, false)
	require.False(t, b.below(pattern))
	require.Equal(t, fmt.Sprint(int64(b.Spec.DeviceSize())), b.sh("blockdev --getsize64 "+rawLV))
	seen, err := b.engine().List(t.Context())
	require.NoError(t, err)
	require.Len(t, seen, 1)
	require.True(t, seen[0].Encrypted)
	require.Equal(t, []string{b.Target}, seen[0].Mounts)
	space, err := b.engine().Space(b.Spec.Group, b.Spec.Name, b.Target)
	require.NoError(t, err)
	require.Equal(t, node.Space{Size: rawSize, Block: true}, space)

	require.False(t, b.verb("unmount").run(t))
	require.Empty(t, b.left())
	sum := b.sh("sha256sum " + rawLV)
	for range 2 { // found by its record, then by LVM
		require.Contains(t, b.with("mount", falseKey).fails(t), "the key of volume flexlvm-test/data is wrong, and nothing was changed")
		require.Contains(t, b.with("mount", "").fails(t), "the volume is encrypted")
		plain := b.verb("mount")
		plain.Spec.Encrypted, plain.Key = false, ""
		require.Contains(t, plain.fails(t), "is encrypted, and its PersistentVolume does not say so")
		require.NoError(t, os.RemoveAll(b.Dir+"/state"))
	}
	require.Equal(t, sum, b.sh("sha256sum "+rawLV))
	require.Empty(t, b.left())
	b.sh("lvchange -an flexlvm-test/data") // as after a reboot
	require.False(t, b.verb("mount").run(t))
	b.requirePattern(b.Target, rawSize, rawSize, false)
}

// An online growth is killed after some of its steps: the added part is zeroed. Without the key,
// nothing grows.
func TestEncryptedBlockExpandKilledAfterSomeSteps(t *testing.T) {
	b := newEncryptedRawBed(t)
	c := b.verb("expand")
	c.Size = rawGrown
	deaths := afterSomeSteps(t, 2, c, func() {
		b.clear()
		b.dirty()
		require.False(t, b.verb("mount").run(t))
		b.writePattern(rawSize)
	}, func(int) { b.requirePattern(b.Target, rawSize, rawGrown, false) })
	require.Equal(t, 7, deaths, "lvextend, luksResize; zero, tag zeroed; tag size, write record; grow mapping")
	c.Size = 2 * rawGrown
	c.Key = falseKey
	require.Contains(t, c.fails(t), "Unauthenticated")
	b.requirePattern(b.Target, rawSize, rawGrown, false)
}

// Unpublish is killed after every step. A device that is published or open is not removed.
func TestEncryptedBlockUnpublishKilledAfterEveryStep(t *testing.T) {
	b := newEncryptedRawBed(t)
	require.False(t, b.verb("mount").run(t))
	b.writePattern(rawSize)
	untilAlive(t, b.verb("unmount"), func() {
		require.False(t, b.verb("mount").run(t))
	}, func(die int) {
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		require.Empty(t, b.left(), "after death %d", die)
		require.False(t, b.verb("mount").run(t))
		b.requirePattern(b.Target, rawSize, rawSize, false)
		require.NoError(t, b.engine().CloseUnused(t.Context()))
		require.Len(t, strings.Fields(b.left()), 2, "it is in use")
	})
	require.False(t, b.verb("mount").run(t))
	ref := node.Ref{Group: "flexlvm-test", Name: "data", Cluster: b.Spec.Cluster}
	e := b.engine()
	require.NoError(t, e.Release(t.Context(), ref, volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, e.Remove(t.Context(), ref), node.ErrInUse)
	require.False(t, b.verb("unmount").run(t))
	require.NoError(t, e.Remove(t.Context(), ref))
	require.Empty(t, b.lvs())
}

// Thin and thick snapshots are taken without the key and restored with the source's key. They do not
// have the source's later writes. The next mount completes a first mount that was killed. A thick
// restore has zeros behind the snapshot's content.
func TestEncryptedBlockSnapshotKilledAfterSomeSteps(t *testing.T) {
	for name, thin := range map[string]bool{"linear": false, "thin": true} {
		t.Run(name, func(t *testing.T) {
			b := newEncryptedRawBed(t)
			if thin {
				b.thin()
			}
			require.False(t, b.verb("mount").run(t))
			b.writePattern(rawSize)
			snap := b.Spec
			snap.Name, snap.CloneOf, snap.Kind = "snap", b.Spec.Name, volume.Snapshot
			t.Cleanup(func() { b.sh("lvremove --yes flexlvm-test/snap") })
			taken := b.takeSnapshot(snap)
			require.Equal(t, rawSize, taken.Size)
			b.sh("dd if=/dev/urandom of=" + b.Target + " bs=1M count=5 conv=notrunc,fsync status=none")

			c := b.restoring(snap)
			c.Spec.Size, c.Key = rawGrown, rightKey
			check := func(int) { b.requirePattern(c.Target, rawSize, rawGrown, thin) }
			if thin && !inFull() { // the other steps also occur in the thick case and in TestEncryptedCopyKilledAfterSomeSteps
				for _, die := range []int{3, 5} {
					b.beginRestore(c, thin)
					c.Die = die
					require.True(t, c.run(t), "luksOpen, luksResize")
					c.Die = 0
					require.False(t, c.run(t))
					check(die)
				}
			} else {
				require.Equal(t, 9, afterSomeSteps(t, 1, c, func() { b.beginRestore(c, thin) }, check),
					"thick: set LUKS UUID, luksOpen; zero, tag zeroed; lvextend, tag ready; thin: snapshot; set LUKS UUID, luksOpen; lvextend, luksResize, tag ready; and make mapping; write record; move mount")
			}
			require.NotEqual(t, b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-snap"), b.sh("cryptsetup luksUUID /dev/mapper/flexlvm--test-restored"))
			require.NotContains(t, b.sh("lvs --noheadings -o lv_tags flexlvm-test/restored"), "flexlvm.clone")
			b.beginRestore(c, thin)
			c.Key = falseKey
			require.Contains(t, c.fails(t), "Unauthenticated")
			c.Key = rightKey
			require.False(t, c.run(t))
			check(0)
			b.requireNothingStale(c, thin)
		})
	}
}

// requireNothingStale fills the part of a restored volume behind the snapshot's content and deletes the
// volume. The next restored volume has the same volume key and, if thick, the same extents, and must
// show none of that data. Another namespace cannot restore the snapshot.
func (b bed) requireNothingStale(c call, thin bool) {
	b.t.Helper()
	const tail = int64(rawGrown - rawSize)
	place := func() string { return b.sh("lvs --noheadings --segments -o seg_pe_ranges flexlvm-test/restored") }
	b.sh(fmt.Sprintf("yes %s | head -c %d | dd of=%s bs=1M oflag=seek_bytes seek=%d conv=notrunc,fsync status=none", pattern, tail, c.Target, int64(rawSize)))
	found := func() string {
		return b.sh(fmt.Sprintf("echo 3 > /proc/sys/vm/drop_caches; tail -c %d %s | grep -c -a -F -e %s || true", tail, c.Target, pattern))
	}
	require.NotEqual(b.t, "0", found())
	was := place()
	b.forgetRestored(c)

	thief := c
	thief.Spec.Namespace = "thief"
	if thin {
		require.Contains(b.t, thief.fails(b.t), `belongs to namespace "default", not to "thief"`)
	} else {
		require.ErrorContains(b.t, b.engine().CreateCloneAhead(b.t.Context(), thief.Spec), `belongs to namespace "default", not to "thief"`)
		require.NoError(b.t, b.engine().CreateCloneAhead(b.t.Context(), c.Spec))
	}
	require.False(b.t, c.run(b.t))
	require.Equal(b.t, was, place())
	require.Equal(b.t, "0", found())
	b.sh(fmt.Sprintf("dd if=/dev/zero of=%s bs=4096 count=1 oflag=seek_bytes seek=%d conv=notrunc,fsync status=none", c.Target, int64(rawSize+volume.Block)))
	require.Equal(b.t, "0", found(), "the rest of a chunk of the pool")
}

// beginRestore deletes the restored volume. For a thick snapshot it then creates the clone as far as
// that needs no key.
func (b bed) beginRestore(c call, thin bool) {
	b.t.Helper()
	b.forgetRestored(c)
	if !thin {
		b.dirty()
		require.NoError(b.t, b.engine().CreateCloneAhead(b.t.Context(), c.Spec))
	}
}

func (b bed) forgetRestored(c call) {
	b.t.Helper()
	b.sh("umount " + c.Target + " 2>/dev/null || true")
	require.NoError(b.t, b.engine().CloseUnused(b.t.Context()))
	if strings.Contains(b.lvs(), "restored") {
		b.sh("lvremove --yes flexlvm-test/restored")
	}
	require.NoError(b.t, os.RemoveAll(b.Dir+"/state/volumes/flexlvm-test/restored"))
}
