//go:build vm

package node

import (
	"cmp"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// behind makes the engine leave settling to another process, as the driver does.
func behind(m *machine) (settled *int) {
	count := 0
	m.settle = func(volume.Group, volume.Name) { count++ }
	return &count
}

// A volume that was handed out while its tags still say creating is never
// formatted, and its next mount needs neither LVM nor settling to have worked.
func TestHandedOutIsNeverFormatted(t *testing.T) {
	m := newMachine(t)
	asked := behind(m)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.Equal(t, 1, *asked)
	require.Equal(t, volume.Creating, tagsOf(t, s.Name).State)
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	require.FileExists(t, m.mount(s, "a")+"/f")
	require.Equal(t, 2, *asked, "each mount asks again until it is done")
	m.unmount(target)

	// The same after a boot, when LVM has to be asked.
	m.shell("vgchange -an %s", group)
	require.FileExists(t, m.mount(s, "a")+"/f")
	m.unmount(target)

	m.shell("dd if=/dev/zero of=%s bs=4k count=1 conv=fsync status=none", devicePath(s))
	before := m.written(devicePath(s))
	require.ErrorIs(t, m.tryMount(s, target), ErrDamaged)
	require.ErrorIs(t, m.Expand(m.ctx(), s, volume.GiB), ErrDamaged)
	require.Equal(t, before, m.written(devicePath(s)))
}

// The record of a new volume may be visible and not durable, if the call that wrote it died: each call writes
// it again, until the volume is settled.
func TestRecordOfANewVolumeIsMadeDurable(t *testing.T) {
	m := newMachine(t)
	behind(m)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	var steps []string
	m.after = func(step string) { steps = append(steps, step) }
	m.unmount(m.mount(s, "a"))
	require.Contains(t, steps, "write record")
	require.NoError(t, m.Settle(m.ctx(), s.Group, s.Name))
	steps = nil
	m.unmount(m.mount(s, "a"))
	require.NotContains(t, steps, "write record")
}

func TestSettle(t *testing.T) {
	m := newMachine(t)
	behind(m)
	s := m.volume("data", 64*volume.MiB)
	require.NoError(t, m.Settle(m.ctx(), s.Group, s.Name), "a volume that does not exist has nothing to settle")
	m.mount(s, "a")
	require.NoError(t, m.Settle(m.ctx(), s.Group, s.Name))
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
	rec, err := m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Ready, rec.State)
	require.NoError(t, m.Settle(m.ctx(), s.Group, s.Name), "again changes nothing")

	// Settling is completed if it died after it wrote the tags.
	rec.State = volume.Creating
	require.NoError(t, m.records.write(s.Group, s.Name, rec))
	require.NoError(t, m.Settle(m.ctx(), s.Group, s.Name))
	rec, err = m.records.read(s.Group, s.Name)
	require.NoError(t, err)
	require.Equal(t, volume.Ready, rec.State)

	// A volume that was released meanwhile stays released.
	other := m.volume("other", 64*volume.MiB)
	m.unmount(m.mount(other, "b"))
	require.NoError(t, m.Release(m.ctx(), refOf(other), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Settle(m.ctx(), other.Group, other.Name))
	require.Equal(t, volume.Unreferenced, tagsOf(t, other.Name).State)
}

func TestGrowthSettlesFirst(t *testing.T) {
	m := newMachine(t)
	behind(m)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, m.Expand(m.ctx(), s, grown))
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
	size, _, _ := df(t, target)
	require.Equal(t, grown, size)
}

// A mount that comes after its claim was released creates nothing.
func TestLateMountMakesNothing(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}), "never made")
	for range 2 {
		err := m.tryMount(s, m.target("a"))
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "is not created again")
		require.Empty(t, lvs())
	}
	// A mount that comes after its volume was removed creates nothing either.
	other := m.volume("other", 64*volume.MiB)
	m.unmount(m.mount(other, "b"))
	require.NoError(t, m.Release(m.ctx(), refOf(other), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(other)))
	require.ErrorIs(t, m.tryMount(other, m.target("b")), ErrRefused)
	require.Empty(t, lvs())

	m.now = func() time.Time { return time.Now().Add(tombstoneLife + time.Minute) }
	m.mount(s, "a") // by then no call can be late
}

func TestLastUseOutlivesRelease(t *testing.T) {
	m := newMachine(t)
	then := time.Now().Add(-time.Hour).Truncate(time.Second).UTC()
	m.now = func() time.Time { return then }
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	released := then.Add(30 * time.Minute)
	m.now = func() time.Time { return released }
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: volume.WipeDiscard}))
	all, err := machineAt(t, m.dir, "").List(m.ctx()) // another process
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, then, all[0].LastUsed)
	require.Equal(t, released, all[0].Released.Truncate(time.Second))
	require.Equal(t, volume.ReclaimImmediate, all[0].Reclaim)
	require.Equal(t, volume.WipeDiscard, all[0].Wipe)
}

func TestSetState(t *testing.T) { linearAndThin(t, testSetState) }

func testSetState(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	_, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Unreferenced)
	require.ErrorIs(t, err, ErrInUse)
	m.unmount(target)
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	for _, to := range []volume.State{volume.Retained, volume.Unreferenced, volume.Ready, volume.Retained, volume.Ready, volume.Ready} {
		v, err := m.SetState(m.ctx(), s.Group, s.Name, to)
		require.NoError(t, err)
		require.Equal(t, to, v.State)
		require.Equal(t, volume.WipeZero, v.Wipe)
		require.Equal(t, to, tagsOf(t, s.Name).State)
	}
	require.FileExists(t, m.mount(s, "a")+"/f")
	m.unmount(target)

	// Another disposal replaces the first.
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeDiscard}))
	require.Equal(t, volume.WipeDiscard, tagsOf(t, s.Name).Wipe)

	_, err = m.SetState(m.ctx(), s.Group, s.Name, volume.Doomed)
	require.Error(t, err)
	_, err = m.SetState(m.ctx(), s.Group, "nothing", volume.Ready)
	require.ErrorIs(t, err, lvm.ErrNoVolume)
	m.shell("lvcreate --yes -L 4m -n theirs %s", group)
	defer m.clear("theirs")
	_, err = m.SetState(m.ctx(), s.Group, "theirs", volume.Unreferenced)
	require.ErrorIs(t, err, ErrRefused)
}

func TestSetStateKilledAfterEveryStep(t *testing.T) {
	for from, to := range map[volume.State]volume.State{volume.Unreferenced: volume.Ready, volume.Ready: volume.Unreferenced} {
		m := newMachine(t)
		s := m.volume("data-"+string(to), 16*volume.MiB)
		target := m.target("a")
		m.mount(s, "a")
		require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
		m.unmount(target)
		untilAlive(t, call{Dir: m.dir, Verb: "set-state " + string(to), Spec: s}, func() {
			_, err := m.SetState(m.ctx(), s.Group, s.Name, from)
			require.NoError(t, err)
		}, func(int) {
			require.Equal(t, to, tagsOf(t, s.Name).State)
			err := m.tryMount(s, target)
			if to != volume.Ready {
				require.ErrorIs(t, err, ErrRefused)
				return
			}
			require.NoError(t, err)
			require.FileExists(t, target+"/f")
			m.unmount(target)
		})
	}
}

func TestHeal(t *testing.T) { linearAndThin(t, testHeal) }

func testHeal(t *testing.T, m *machine) {
	behind(m)
	s := m.volume("data", 64*volume.MiB)
	ref := refOf(s)
	require.NoError(t, m.Heal(m.ctx(), ref), "nothing to heal")
	m.unmount(m.mount(s, "a"))
	require.NoError(t, m.Heal(m.ctx(), ref))
	require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)

	node := "/dev/mapper/" + volume.DeviceName(group, s.Name)
	m.shell("vgchange -an %s", group)
	require.NoFileExists(t, node)
	require.NoError(t, m.Heal(m.ctx(), ref))
	require.FileExists(t, node)

	require.NoError(t, os.Remove(node))
	require.NoError(t, m.Heal(m.ctx(), ref))
	require.FileExists(t, node, "the node alone was missing")

	stranger := ref
	stranger.Cluster = "another"
	require.ErrorIs(t, m.Heal(m.ctx(), stranger), ErrRefused)

	require.NoError(t, m.Release(m.ctx(), ref, volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, os.Remove(node))
	require.NoError(t, m.Heal(m.ctx(), ref))
	require.FileExists(t, node, "without it nobody can tell whether the volume is mounted")
	m.shell("vgchange -an %s", group)
	require.NoError(t, m.Heal(m.ctx(), ref))
	require.NoFileExists(t, node, "nobody wants that one")
}

// A volume in state creating that was never handed out is left to its next mount.
func TestHealFormatsNothing(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	tags := volume.Tags{State: volume.Creating, FS: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind}
	m.half(s, tags)
	require.NoError(t, m.Heal(m.ctx(), refOf(s)))
	require.Equal(t, volume.Creating, tagsOf(t, s.Name).State)
	target := m.mount(s, "a")
	m.unmount(target)

	// A person gives up a volume that nobody needs, and it is removed.
	other := m.volume("never", 64*volume.MiB)
	m.half(other, tags)
	_, err := m.SetState(m.ctx(), other.Group, other.Name, volume.Ready)
	require.ErrorIs(t, err, ErrRefused)
	_, err = m.SetState(m.ctx(), other.Group, other.Name, volume.Unreferenced)
	require.NoError(t, err)
	require.NoError(t, m.Remove(m.ctx(), refOf(other)))
	require.NotContains(t, lvs(), "never")
}

// The age of a volume whose record cannot be read is unknown: it is left to a person, and not evicted.
func TestUnreadableRecord(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, os.WriteFile(m.records.file(s.Group, s.Name), []byte("{"), 0o600))
	all, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Contains(t, all[0].Problem, "read record "+m.records.file(s.Group, s.Name))
}

func TestInventory(t *testing.T) { linearAndThin(t, testInventory) }

func testInventory(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.shell("lvcreate --yes -L 4m -n theirs %s", group)
	defer m.clear("theirs")
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	p := in.Pools[0]
	require.EqualValues(t, group, p.Name)
	require.Zero(t, p.Missing)
	if m.shape.Layout == volume.Thin {
		require.Len(t, in.Pools, 2)
		require.Equal(t, 1, p.LVs, "the pool and what is in it is not the group's")
		require.Equal(t, p.Size-p.Free, 4*volume.MiB)
		requireThinInventory(t, in)
	} else {
		require.Len(t, in.Pools, 1)
		require.Equal(t, 2, p.LVs)
		require.Equal(t, p.Size-p.Free, s.ChargeIn(p.Extent)+4*volume.MiB)
		require.Equal(t, s.Charge(), in.Volumes[0].Allocated)
	}
	require.Len(t, p.DeviceFree, len(testDisks())-1)
	require.True(t, slices.IsSortedFunc(p.DeviceFree, func(a, b volume.Bytes) int { return cmp.Compare(b, a) }))
	var free volume.Bytes
	for _, f := range p.DeviceFree {
		free += f
	}
	require.Equal(t, p.Free, free)
	require.Len(t, in.Volumes, 1, "what it is made of is no volume")
	require.Equal(t, s.Charge(), in.Volumes[0].AllocatedWhenFull)
	require.Equal(t, m.shape, in.Volumes[0].Shape)
	require.Equal(t, []string{target}, in.Volumes[0].Mounts)
	require.Equal(t, p.UUID, in.Volumes[0].GroupUUID)
	require.True(t, in.Volumes[0].Open)
}

// Wiping continues where it was stopped, and at the configured rate.
func TestWipeGoesOn(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	m.unmount(m.mount(s, "a"))
	lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
	require.NoError(t, err)
	device := "/dev/mapper/" + volume.DeviceName(s.Group, s.Name)
	rec := record{State: volume.Doomed, VolumeUUID: lv.UUID, Wiped: 32 * volume.MiB}
	m.shell("dd if=/dev/urandom of=%s bs=1M count=64 conv=fsync status=none", device)
	first := m.shell("head -c 32M %s | md5sum", device)
	require.NoError(t, m.records.write(s.Group, s.Name, rec))
	m.wipeRate = lv.Size // a second for all, half of it for the rest
	start := time.Now()
	require.NoError(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeZero}))
	require.Greater(t, time.Since(start), 300*time.Millisecond)
	require.Equal(t, first, m.shell("head -c 32M %s | md5sum", device), "what was noted as wiped is not wiped again")
	m.shell("tail -c +33554433 %s | cmp -n $(( $(blockdev --getsize64 %s) - 33554432 )) - /dev/zero", device, device)

	// The recorded progress of another volume is ignored.
	rec.VolumeUUID = "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
	require.NoError(t, m.records.write(s.Group, s.Name, rec))
	m.wipeRate = 0
	require.NoError(t, m.wipe(m.ctx(), lv, volume.Tags{Wipe: volume.WipeZero}))
	m.shell("cmp -n $(blockdev --getsize64 %s) %s /dev/zero", device, device)
}
