//go:build vm

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func refOf(s volume.Spec) Ref {
	return Ref{Group: s.Group, DirectoryPool: s.DirectoryPool, Name: s.Name, Cluster: s.Cluster, Kind: s.Kind}
}

func TestRemove(t *testing.T) { linearAndThin(t, testRemove) }

func testRemove(t *testing.T, m *machine) {
	wipes := []volume.Wipe{volume.WipeZero}
	if m.shape.Layout == volume.Linear {
		wipes = append(wipes, volume.WipeNone, volume.WipeDiscard)
	}
	for _, w := range wipes {
		t.Run(string(w), func(t *testing.T) {
			m := m.in(t)
			s := m.volume("data", 64*volume.MiB)
			s.Kind = volume.Dataset
			target := m.mount(s, "a")
			require.NoError(t, os.WriteFile(target+"/f", nil, 0o600))
			m.unmount(target)
			ref := refOf(s)
			require.ErrorIs(t, m.Remove(m.ctx(), ref), ErrRefused, "ready volumes are never removed")
			require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{Wipe: w}))
			require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{Wipe: w}), "again is success")
			require.NoError(t, m.Remove(m.ctx(), ref))
			require.Empty(t, lvs())
			require.NoError(t, m.Remove(m.ctx(), ref), "gone is success")

			// A dataset's name can be used again, for a new volume.
			require.NoFileExists(t, m.mount(s, "a")+"/f")
		})
	}
}

// A dataset's replica may have the name of an earlier one whose removal is not finished. A volume that merely
// has a doomed name was never given up.
func TestFinishingTouchesNothingElse(t *testing.T) {
	m := newMachine(t)
	s := m.volume("copy", 64*volume.MiB)
	s.Kind = volume.Dataset
	giveUp := func() {
		m.unmount(m.mount(s, "a"))
		require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	}
	giveUp()
	_, err := m.commitRemoval(m.ctx(), refOf(s))
	require.NoError(t, err)
	giveUp()
	doomed := refOf(s)
	doomed.Name = doomed.Name.Doomed()
	require.NoError(t, m.Remove(m.ctx(), doomed))
	require.NotContains(t, lvs(), "doomed_copy")
	require.Equal(t, volume.Unreferenced, tagsOf(t, s.Name).State)
	require.NoError(t, m.Remove(m.ctx(), doomed), "gone is success")
	require.Equal(t, volume.Unreferenced, tagsOf(t, s.Name).State)

	_, err = m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
	require.NoError(t, err)
	m.shell("lvrename %s %s %s", group, s.Name, doomed.Name)
	require.ErrorIs(t, m.Remove(m.ctx(), doomed), ErrRefused)
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrRefused)
	require.Contains(t, lvs(), "doomed_copy")
}

// A removal is committed by its tag. Killed before that, the volume can still be brought back; killed after
// it, it cannot, so a late LVM command cannot rename a volume that is in use again.
func TestRemovalIsCommittedByItsTag(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 16*volume.MiB)
	for die, step := range []string{"remove record", "tag doomed", "lvrename"} {
		m.unmount(m.mount(s, "a"))
		require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
		require.True(t, call{Dir: m.dir, Verb: "remove", Spec: s, Die: die + 1}.run(t), step)
		_, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
		switch step {
		case "remove record":
			require.NoError(t, err)
			require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
			continue
		case "tag doomed":
			require.ErrorIs(t, err, ErrRefused)
		case "lvrename":
			require.Error(t, err)
		}
		require.NoError(t, m.Remove(m.ctx(), refOf(s)), step)
		require.Empty(t, lvs())
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}
}

func TestWipeZeroLeavesNothing(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	device := "/dev/mapper/" + volume.DeviceName(s.Group, s.Name)
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	require.NoError(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeZero}))
	m.shell("cmp -n $(blockdev --getsize64 %s) %s /dev/zero", device, device)
}

// If the progress cannot be recorded, for example on a full disk, a wipe continues: otherwise the next
// attempt would start where this one did, and never get further.
func TestWipeGoesOnWithoutNotes(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	device := "/dev/mapper/" + volume.DeviceName(s.Group, s.Name)
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	m.records, m.wipeProgressInterval = records(file), 16*volume.MiB
	require.Error(t, m.records.write(s.Group, s.Name, newRecord(lv.UUID, tagsOf(t, s.Name))))
	require.NoError(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeZero}))
	m.shell("cmp -n $(blockdev --getsize64 %s) %s /dev/zero", device, device)
}

// A pool gets a volume's blocks back immediately, and not only when the volume is removed.
func TestWipeDiscardGivesBack(t *testing.T) {
	m, _ := thinMachine(t, 4*volume.GiB)
	s := m.volume("data", 512*volume.MiB)
	target := m.mount(s, "a")
	m.shell("dd if=/dev/urandom of=%s/f bs=1M count=100 conv=fsync status=none", target)
	m.unmount(target)
	before := m.usedOf(testPool)
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	require.NoError(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeDiscard}))
	require.Less(t, m.usedOf(testPool), before-90*volume.MiB)
}

func TestRetainedIsNeverRemoved(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Retained, volume.Disposal{}))
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrRefused)
	require.ErrorIs(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}), ErrRefused, "only a person gives it up")
	require.Contains(t, lvs(), "data")
}

// The reclaim policy changes to Retain when the volume is already unreferenced.
func TestUnreferencedMayBeRetained(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Reclaim: volume.ReclaimImmediate}))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Retained, volume.Disposal{}))
	require.Equal(t, volume.Retained, tagsOf(t, s.Name).State)
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrRefused)
	require.ErrorContains(t, m.tryMount(s, m.target("b")), "retained")
}

// A decision about one volume is not applied to another volume that has its name meanwhile.
func TestAnotherOfTheNameIsLeftAlone(t *testing.T) {
	m := newMachine(t)
	s := m.volume("copy", 64*volume.MiB)
	s.Kind = volume.Dataset
	m.unmount(m.mount(s, "a"))
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	this, another := refOf(s), refOf(s)
	this.UUID, another.UUID = lv.UUID, "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk"
	require.ErrorIs(t, m.Release(m.ctx(), another, volume.Unreferenced, volume.Disposal{}), ErrRefused)
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
	require.NoError(t, m.Release(m.ctx(), this, volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.Remove(m.ctx(), another), ErrRefused)
	require.Contains(t, lvs(), "copy")
	require.NoError(t, m.Remove(m.ctx(), this))
	require.Empty(t, lvs())
}

func TestRemovalTouchesNobodyElses(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 0)
	m.shell("lvcreate --yes -L 4m -n data %s", group)
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrRefused)
	require.ErrorIs(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}), ErrRefused)

	other := m.volume("theirs", 64*volume.MiB)
	m.unmount(m.mount(other, "a"))
	stranger := refOf(other)
	stranger.Cluster = "another"
	require.ErrorIs(t, m.Release(m.ctx(), stranger, volume.Unreferenced, volume.Disposal{}), ErrRefused)
	require.NoError(t, m.Release(m.ctx(), refOf(other), volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.Remove(m.ctx(), stranger), ErrRefused)
	require.ElementsMatch(t, []string{"data", "theirs"}, lvs())

	// LVM itself selects volumes by UUID, name and tag.
	lv, err := m.lvm.Volume(m.ctx(), group, "data")
	require.NoError(t, err)
	require.ErrorContains(t, m.lvm.Remove(m.ctx(), lv), "still there")
	lv, err = m.lvm.Volume(m.ctx(), group, "theirs")
	require.NoError(t, err)
	lv.UUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	require.NoError(t, m.lvm.Remove(m.ctx(), lv), "that one is gone, whatever carries its name now")
	require.Contains(t, lvs(), "theirs")
}

func TestRemovalOfWhatCannotBeSeen(t *testing.T) {
	m := newMachine(t)
	ref := refOf(m.volume("data", volume.GiB))
	ref.Group = "nowhere"
	require.ErrorIs(t, m.Remove(m.ctx(), ref), lvm.ErrNoGroup, "an absent group is no proof of an absent volume")
}

// A volume that is only mounted in another mount namespace.
func TestRemovalOfWhatIsStillMountedElsewhere(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	holder := exec.Command("unshare", "--mount", "--propagation", "private", "sleep", "300")
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, holder.Start())
	defer func() {
		_ = holder.Process.Kill()
		_ = holder.Wait()
	}()
	require.Eventually(t, func() bool {
		ours, err1 := os.Readlink("/proc/self/ns/mnt")
		theirs, err2 := os.Readlink("/proc/" + itoa(holder.Process.Pid) + "/ns/mnt")
		comm, _ := os.ReadFile("/proc/" + itoa(holder.Process.Pid) + "/comm") // unshare makes its mounts private after that
		return err1 == nil && err2 == nil && ours != theirs && string(comm) == "sleep\n"
	}, time.Minute, 10*time.Millisecond)
	m.unmount(target)
	require.False(t, isMounted(target))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrInUse)
	require.Contains(t, lvs(), "data", "untouched, under its own name")

	require.NoError(t, holder.Process.Kill())
	_ = holder.Wait()
	require.Eventually(t, func() bool { return m.Remove(m.ctx(), refOf(s)) == nil }, time.Minute, 100*time.Millisecond)
	require.Empty(t, lvs())
}

// LVM removes a volume's snapshots with it, and these may not be flexlvm's.
func TestVolumeWithSnapshotsIsNotRemoved(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	m.shell("lvcreate --yes -s -L 16m -n backup %s/data", group)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	err := m.Remove(m.ctx(), refOf(s))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, "has snapshots")
	require.ElementsMatch(t, []string{"data", "backup"}, lvs())
	m.shell("lvremove --yes %s/backup", group)
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
}
