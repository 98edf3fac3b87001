//go:build vm

package node

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// storeOf returns the spec of a copy-on-write snapshot of s.
func (m *machine) storeOf(s volume.Spec, name string, r volume.Reserve) volume.Spec {
	m.t.Helper()
	snap := specOf(name, s.Size)
	snap.Kind, snap.CloneOf, snap.Reserve, snap.FSType = volume.Snapshot, s.Name, r, s.FSType
	m.t.Cleanup(func() { m.clear(snap.Name) })
	return snap
}

func (m *machine) snapshotNow(s volume.Spec) inventory.Volume {
	m.t.Helper()
	made, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: s}, stillWanted)
	require.NoError(m.t, err)
	return made
}

// drop releases and removes a volume.
func (m *machine) drop(s volume.Spec, w volume.Wipe) {
	m.t.Helper()
	require.NoError(m.t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: w}))
	require.NoError(m.t, m.Remove(m.ctx(), refOf(s)))
}

// see returns a volume's entry in the inventory.
func (m *machine) see(n volume.Name) inventory.Volume {
	m.t.Helper()
	in, err := m.Inventory(m.ctx())
	require.NoError(m.t, err)
	for _, v := range in.Volumes {
		if v.Name == n {
			return v
		}
	}
	require.FailNow(m.t, "there is no such volume", n)
	return inventory.Volume{}
}

// requireHeld checks that a volume with snapshots can be neither removed nor mounted, by any call.
func (m *machine) requireHeld(s volume.Spec) {
	m.t.Helper()
	ref := refOf(s)
	require.ErrorContains(m.t, m.Remove(m.ctx(), ref), "has snapshots")
	ref.UUID = m.see(s.Name).UUID
	for _, err := range m.RemoveAll(m.ctx(), []Ref{ref, ref}) {
		require.ErrorContains(m.t, err, "has snapshots")
	}
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(m.t, err)
	require.True(m.t, lv.HasSnapshots)
	require.ErrorContains(m.t, m.lvm.Remove(m.ctx(), lv), "has snapshots")
	require.NoError(m.t, m.lvm.Doom(m.ctx(), s.Group, []lvm.LogicalVolume{lv}))
	require.NoError(m.t, m.lvm.RemoveDoomed(m.ctx(), s.Group, []lvm.LogicalVolume{lv}))
	require.ErrorIs(m.t, m.tryMount(s, m.target("held")), ErrRefused)
	require.Equal(m.t, volume.Unreferenced, tagsOf(m.t, s.Name).State)
}

// A copy-on-write snapshot of a volume that is being written to holds what was synced, prevents the removal
// of its source, and can be restored to any thick layout. Except for that, source, snapshots and copies can
// be removed in any order.
func TestCopyOnWriteSnapshot(t *testing.T) { eachThickLayout(t, testCopyOnWriteSnapshot) }

func testCopyOnWriteSnapshot(t *testing.T, m *machine) {
	s := m.volume("source", 32*volume.MiB)
	if m.shape.Layout == volume.Striped {
		s.FSType = volume.Ext4
	}
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 10*volume.MiB)
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	writes(&wg, from, stop)
	snap, other := m.storeOf(s, "snap", 0), m.storeOf(s, "other", 0)
	made := m.snapshotNow(snap)
	require.Equal(t, made.UUID, m.snapshotNow(snap).UUID, "it is taken once")
	m.snapshotNow(other)
	close(stop)
	wg.Wait()
	require.Equal(t, snap.CloneOf, made.SnapshotOf)
	require.Equal(t, s.Size, made.Size)
	require.NoError(t, os.Remove(from+"/kept"))
	randomFile(t, from+"/kept", 10*volume.MiB)
	seen := m.see(snap.Name)
	require.Equal(t, seen.Allocated, seen.AllocatedWhenFull)
	require.Equal(t, m.shape, m.see(s.Name).Shape, "its layout is read as before")
	require.Positive(t, seen.Stored)
	require.Empty(t, seen.Problem)

	// The device disappears as in a shutdown, and comes back as in a boot.
	m.unmount(from)
	m.shell("lvchange --yes -an %s/%s", group, s.Name)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	m.requireHeld(s)

	same := m.copyOf(snap, "same", m.shape, s.Size)
	require.ErrorIs(t, m.tryMount(same, m.target("r")), ErrNotCopied)
	thief := same
	thief.Name, thief.Namespace = "stolen", "thief"
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), thief), `belongs to namespace "default", not to "thief"`)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), same))
	require.NoError(t, m.CreateCloneAhead(m.ctx(), same), "it is there already")
	m.requireRestored(same, sum)
	m.drop(other, volume.WipeNone)
	m.requireHeld(s)
	m.drop(snap, volume.WipeNone)
	require.NoError(t, m.Remove(m.ctx(), refOf(s)), "the last snapshot is gone")
	require.Equal(t, []string{"same"}, lvs())
	to := m.mount(same, "r")
	require.Equal(t, sum, sumOf(t, to+"/kept"))
	m.unmount(to)
}

// copyOf returns the spec of a full copy of a snapshot.
func (m *machine) copyOf(snap volume.Spec, name string, h volume.Shape, size volume.Bytes) volume.Spec {
	m.t.Helper()
	c := m.volume(name, size)
	c.Layout, c.Stripes, c.StripeKiB, c.Mirrors, c.ThinPool = h.Layout, h.Stripes, h.StripeKiB, h.Mirrors, ""
	c.CloneOf, c.FSType = snap.Name, snap.FSType
	return c
}

func (m *machine) requireRestored(c volume.Spec, sum string) {
	m.t.Helper()
	tags := tagsOf(m.t, c.Name)
	require.Equal(m.t, []any{volume.Ready, "", volume.Fill(""), c.Size}, []any{tags.State, tags.Clone, tags.Fill, tags.Size})
	to := m.mount(c, "r")
	require.Equal(m.t, sum, sumOf(m.t, to+"/kept"))
	id := strings.TrimSpace(shellOut("blkid -p -s UUID -o value /dev/mapper/" + volume.DeviceName(group, c.Name)))
	require.Equal(m.t, tags.FS, id, "it has a UUID of its own")
	size, _, _ := df(m.t, to)
	require.GreaterOrEqual(m.t, size, c.Size)
	m.unmount(to)
	if c.FSType == volume.XFS {
		requireWhole(m.t, m, c)
	}
}

// overwrite writes size bytes into an existing file, in place.
func overwrite(t *testing.T, file string, size volume.Bytes) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)
	piece := make([]byte, volume.MiB)
	for i := range piece {
		piece[i] = byte(i)
	}
	for at := volume.Bytes(0); at < size; at += volume.MiB {
		_, err := f.WriteAt(piece, int64(at))
		require.NoError(t, err)
	}
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// A snapshot whose store overflows is lost, and is reported as such. Its source loses nothing, and neither
// does another snapshot whose store has room for all of the source.
func TestCopyOnWriteSnapshotOverflows(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 64*volume.MiB)
	from := m.mount(s, "a")
	sum := randomFile(t, from+"/kept", 8*volume.MiB)
	overwrite(t, from+"/more", 48*volume.MiB)
	small, full := m.storeOf(s, "small", 5), m.storeOf(s, "full", 0)
	m.snapshotNow(small)
	m.snapshotNow(full)
	store := m.see(small.Name).Allocated
	require.Equal(t, small.Charge(), store)
	require.Equal(t, full.Charge(), m.see(full.Name).Allocated)

	overwrite(t, from+"/more", 8*volume.MiB)
	half := m.see(small.Name)
	require.False(t, half.Overflowed)
	require.InDelta(t, float64(8*volume.MiB), float64(half.Stored), float64(2*volume.MiB), "of %s", store)
	require.InDelta(t, float64(half.Stored*100/store), float64(m.fill(small.Name)), 1, "as LVM sees it")
	require.Less(t, m.fill(full.Name), m.fill(small.Name))
	copied := m.copyOf(small, "copied", shapes[0], s.Size)
	require.True(t, call{Dir: m.dir, Verb: "clone", Spec: copied, Die: 2 + int(m.see(s.Name).Allocated.RoundUp(copyPart)/copyPart)}.run(t))
	require.Equal(t, volume.FillCopied, tagsOf(t, copied.Name).Fill, "killed after that")
	require.NoError(t, os.Remove(from+"/kept"))
	kept := randomFile(t, from+"/after", 8*volume.MiB)
	overwrite(t, from+"/more", 48*volume.MiB)
	over := m.see(small.Name)
	require.True(t, over.Overflowed)
	require.Equal(t, store, over.Stored)
	require.Equal(t, 100, m.fill(small.Name))
	require.Equal(t, kept, sumOf(t, from+"/after"), "its source goes on")
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), m.copyOf(small, "lost", shapes[0], s.Size)), "has overflowed")
	require.NoError(t, m.CreateCloneAhead(m.ctx(), copied), "what was copied before needs its source no more")
	m.requireRestored(copied, sum)

	// All of the source is overwritten, to the last byte of its device.
	m.unmount(from)
	m.shell("dd if=/dev/zero of=/dev/mapper/%s bs=1M oflag=direct 2>&1 || true; sync", volume.DeviceName(group, s.Name))
	require.False(t, m.see(full.Name).Overflowed)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	m.drop(small, volume.WipeDiscard)
	c := m.copyOf(full, "copy", shapes[0], grown)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	m.requireRestored(c, sum)
	m.drop(full, volume.WipeNone)
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.ElementsMatch(t, []string{"copied", "copy"}, lvs())
}

// LVM does not extend a volume that has copy-on-write snapshots: the expansion fails, nothing changes, and
// the volume grows once the snapshots are removed.
func TestGrowthWaitsForCopyOnWriteSnapshots(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 32*volume.MiB)
	to := m.mount(s, "a")
	snap := m.storeOf(s, "snap", 30)
	m.snapshotNow(snap)
	out, err := exec.Command("lvextend", "--yes", "--size", "+4m", fmt.Sprintf("%s/%s", group, s.Name)).CombinedOutput()
	require.Error(t, err, "LVM can by now: %s", out)
	require.ErrorIs(t, m.Expand(m.ctx(), s, grown), lvm.ErrHasSnapshots)
	require.Equal(t, s.Size, tagsOf(t, s.Name).Size)
	m.unmount(to)
	m.mount(s, "a")
	m.drop(snap, volume.WipeNone)
	require.NoError(t, m.Expand(m.ctx(), s, grown))
	size, _, _ := df(t, to)
	require.Equal(t, grown, size)
}

func TestCopyOnWriteSnapshotWithoutRoom(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 32*volume.MiB)
	m.unmount(m.mount(s, "a"))
	m.shell("lvcreate --yes --extents 100%%FREE --name all %s", group)
	t.Cleanup(func() { m.shell("lvremove --yes %s/all", group) })
	var steps []string
	m.after = func(step string) { steps = append(steps, step) }
	_, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: m.storeOf(s, "snap", 0)}, stillWanted)
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	require.Empty(t, steps, "its source is not frozen for nothing")
}

func TestCopyOnWriteKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 16*volume.MiB)
	sum := randomFile(t, m.mount(s, "a")+"/kept", 5*volume.MiB)
	snap := m.storeOf(s, "snap", 10)
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "snapshot", Spec: snap}, func() { m.clear(snap.Name) }, func(int) {
		deaths++
		require.Equal(t, s.Name, m.see(snap.Name).SnapshotOf)
		require.ElementsMatch(t, []string{"source", "snap"}, lvs())
	})
	require.Equal(t, 2, deaths, "snapshot; tag ready")

	// The power fails while LVM creates the snapshot: what exists by then is an ordinary volume.
	m.clear(snap.Name)
	half := volume.Tags{State: volume.Creating, FS: tagsOf(t, s.Name).FS, Size: s.Size, Namespace: "default", Cluster: cluster, Kind: volume.Snapshot}
	m.half(snap, half)
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), m.copyOf(snap, "copy", shapes[0], s.Size)), "is not created yet")
	m.snapshotNow(snap)

	m.testFullCopyKilled(snap, sum)
	m.unmount(m.target("a"))
	m.testRemovalKilled(s, snap)
}

// testFullCopyKilled kills a restore after some of its steps, in full mode after each.
func (m *machine) testFullCopyKilled(snap volume.Spec, sum string) {
	t := m.t
	c := m.copyOf(snap, "copy", shapes[0], snap.Size)
	made := func() (steps []string) {
		m.after = func(step string) { steps = append(steps, step) }
		require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
		return steps
	}
	steps := made()
	for die, step := range steps {
		if known := []string{"lvcreate", "copy part", "replay log", "untag copied", "set UUID"}; !inFull() && (!slices.Contains(known, step) || step == "copy part" && die > 1) {
			continue // each takes a virtual node about ten seconds
		}
		m.clear(c.Name)
		require.NoError(t, m.records.remove(c.Group, c.Name))
		require.True(t, call{Dir: m.dir, Verb: "clone", Spec: c, Die: die + 1}.run(t), step)
		tags := tagsOf(t, c.Name)
		half := tags.Clone != "" && tags.Fill != volume.FillCopied
		if half {
			require.ErrorIs(t, m.tryMount(c, m.target("r")), ErrNotCopied, "not before it is whole: %s", step)
		}
		require.Equal(t, step == "tag copied" || step == "replay log", tags.Fill == volume.FillCopied, step)
		require.Equal(t, half, slices.Contains(made(), "copy part"), step)
		m.requireRestored(c, sum)
		require.ElementsMatch(t, []string{"source", "snap", "copy"}, lvs(), step)
	}
	t.Logf("steps of a restore: %s", steps)

	// The copy is given up while it is being copied.
	m.clear(c.Name)
	require.NoError(t, m.records.remove(c.Group, c.Name))
	require.True(t, call{Dir: m.dir, Verb: "clone", Spec: c, Die: 2}.run(t))
	require.NoError(t, m.Release(m.ctx(), refOf(c), volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.CreateCloneAhead(m.ctx(), c), ErrRefused)
	require.NoError(t, m.Remove(m.ctx(), refOf(c)))
}

// testRemovalKilled kills the removal of a snapshot that is wiped, and then that of its source.
func (m *machine) testRemovalKilled(s, snap volume.Spec) {
	t := m.t
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	for die := 1; ; die++ {
		require.Less(t, die, 12)
		if shellOut(fmt.Sprintf("lvs %s/%s", group, snap.Name)) == "" {
			_, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
			require.NoError(t, err)
			require.NoError(t, m.records.remove(snap.Group, snap.Name))
			m.snapshotNow(snap)
			require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
		}
		require.NoError(t, m.Release(m.ctx(), refOf(snap), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
		if !(call{Dir: m.dir, Verb: "remove", Spec: snap, Die: die}).run(t) {
			require.Equal(t, 7, die, "remove record, tag doomed, lvrename, split, wipe, lvremove")
			break
		}
		require.Contains(t, lvs(), "source", "after death %d", die)
		if m.see("source").HasSnapshots {
			m.requireHeld(s)
		}
		require.False(t, call{Dir: m.dir, Verb: "remove", Spec: snap}.run(t))
		require.Equal(t, []string{"source"}, lvs(), "after death %d", die)
	}
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.Empty(t, lvs())
}

// Wiping a snapshot erases its store, which holds old blocks of the source.
func TestStoreOfASnapshotIsWiped(t *testing.T) {
	m := newMachine(t)
	s := m.volume("source", 16*volume.MiB)
	from := m.mount(s, "a")
	secret := strings.Repeat("the secret of a tenant ", 50_000)
	require.NoError(t, os.WriteFile(from+"/secret", []byte(secret), 0o600))
	unix.Sync()
	snap := m.storeOf(s, "snap", 10)
	m.snapshotNow(snap)
	overwrite(t, from+"/secret", 2*volume.MiB)
	device, extent, _ := strings.Cut(strings.TrimSuffix(m.shell("lvs --noheadings -o devices %s/%s", group, snap.Name), ")"), "(")
	// The location of the store on the disk, and the blocks before the first extent.
	secrets := func() string {
		return m.shell("dd if=%s bs=4M skip=%s count=16 iflag=direct status=none | grep -ac 'the secret of a tenant' || true", device, extent)
	}
	require.NotEqual(t, "0", secrets())
	m.drop(snap, volume.WipeZero)
	require.Equal(t, "0", secrets())
}

// A raw block volume can be restored. The part of the copy beyond its content reads as zeros, whatever
// another tenant has left there, or on the source, whose growth was killed.
func TestCopyOnWriteSnapshotOfABlockVolume(t *testing.T) {
	m := newMachine(t)
	m.dirty()
	s := m.rawVolume("source", rawSize)
	from, data := m.mountRaw(s, "a"), pattern("of the source ", rawSize)
	writeDevice(t, from, 0, data)
	require.True(t, call{Dir: m.dir, Verb: "expand", Spec: s, Size: rawGrown, Die: 1}.run(t), "lvextend")
	snap := m.storeOf(s, "snap", 0)
	require.Equal(t, rawSize, m.snapshotNow(snap).Size)
	writeDevice(t, from, 0, pattern("later ", rawSize))
	m.leaveSecrets()
	c := m.copyOf(snap, "copy", shapes[0], rawGrown)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	requireContent(t, m.mountRaw(c, "b"), rawGrown, data)
	m.unmount(m.file("b"))
	m.drop(snap, volume.WipeNone)

	require.NoError(t, m.Expand(m.ctx(), s, rawGrown), "the growth goes on")
	data = pattern("of all of it ", rawGrown)
	writeDevice(t, from, 0, data)
	require.Equal(t, rawGrown, m.snapshotNow(snap).Size)
	writeDevice(t, from, 0, pattern("later ", rawGrown))
	c = m.copyOf(snap, "another", shapes[0], rawGrown)
	require.NoError(t, m.CreateCloneAhead(m.ctx(), c))
	requireContent(t, m.mountRaw(c, "b"), rawGrown, data)
	m.unmount(from)
	m.unmount(m.file("b"))
	m.drop(snap, volume.WipeNone)
}
