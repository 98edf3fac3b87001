//go:build vm

package node

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// rawSize is not a multiple of an extent, and rawGrown needs more extents in every layout.
	rawSize  = 5*volume.MiB + volume.Block
	rawGrown = 13*volume.MiB + 3*volume.Block
	secret   = "what another tenant has left "
)

func (m *machine) rawVolume(name string, size volume.Bytes) volume.Spec {
	m.t.Helper()
	s := m.volume(name, size)
	s.FSType = volume.Raw
	return s
}

// file creates the file that a device is mounted on.
func (m *machine) file(name string) string {
	m.t.Helper()
	path := filepath.Join(m.dir, "devices", name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o750))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o640)
	require.NoError(m.t, err)
	require.NoError(m.t, f.Close())
	m.t.Cleanup(func() { _ = m.Unmount(m.ctx(), path) })
	return path
}

func (m *machine) mountRaw(s volume.Spec, name string) string {
	m.t.Helper()
	target := m.file(name)
	require.NoError(m.t, m.tryMount(s, target))
	return target
}

// clearRaw is clear, and also removes mounts and mappings that a killed call has left.
func (m *machine) clearRaw(s volume.Spec) {
	m.t.Helper()
	m.shell("for f in %s/devices/*; do umount $f 2>/dev/null || true; done; for d in /dev/mapper/flexlvm-block-*; do [ ! -e $d ] || dmsetup remove --retry --verifyudev $d; done", m.dir)
	m.clear(s.Name)
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
}

// requireContent checks that a device holds data, followed by zeros to its end.
func requireContent(t *testing.T, path string, size volume.Bytes, data []byte) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	all, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, size, volume.Bytes(len(all)))
	require.True(t, bytes.HasPrefix(all, data), "what was written is there")
	require.True(t, bytes.Equal(all[len(data):], make([]byte, len(all)-len(data))), "and nothing else")
}

func writeDevice(t *testing.T, path string, at volume.Bytes, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(data, int64(at))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

func pattern(text string, size volume.Bytes) []byte {
	return bytes.Repeat([]byte(text), int(size)/len(text)+1)[:size]
}

// leaveSecrets fills a volume and deletes it without wiping it, so that later volumes get its extents.
func (m *machine) leaveSecrets() {
	m.t.Helper()
	s := m.rawVolume("secret", rawGrown+8*volume.MiB)
	target := m.mountRaw(s, "secret")
	writeDevice(m.t, target, 0, pattern(secret, s.Size))
	m.unmount(target)
	require.NoError(m.t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	require.NoError(m.t, m.Remove(m.ctx(), refOf(s)))
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
}

// dirty fills the extents that the next linear volume gets.
func (m *machine) dirty() {
	m.t.Helper()
	m.shell("lvcreate --yes -q -Wn -Zn -l6 -n dirty %s; yes '%s' | head -c 24M | dd of=/dev/%[1]s/dirty bs=1M conv=fsync status=none; lvremove --yes -q %[1]s/dirty", group, secret)
}

// The life of a raw block volume on extents that are full of another volume's data.
func TestBlock(t *testing.T) { eachLayout(t, testBlock) }

func testBlock(t *testing.T, m *machine) {
	m.leaveSecrets()
	if m.shape.Layout == volume.Linear {
		m.shell("lvcreate --yes -q -Wn -Zn -l5 -n thief %s && head -c 20M /dev/%[1]s/thief | grep -q '%s'; lvremove --yes -q %[1]s/thief", group, strings.TrimSpace(secret))
	}
	s := m.rawVolume("data", rawSize)
	target := m.mountRaw(s, "a")
	requireContent(t, target, rawSize, nil)
	require.NoError(t, m.tryMount(s, target), "again is success")
	first := pattern("first ", rawSize)
	writeDevice(t, target, 0, first)
	tags := tagsOf(t, s.Name)
	require.Equal(t, volume.Ready, tags.State)
	require.Equal(t, volume.Raw, tags.FSType)
	require.Equal(t, m.shape.Layout == volume.Thin, tags.Zeroed == 0)
	all, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, []string{target}, all[0].Mounts)
	require.True(t, all[0].Open, "though no process has it open")
	require.Equal(t, s.Charge(), all[0].AllocatedWhenFull)
	space, err := m.Space(s.Group, s.Name, target)
	require.NoError(t, err)
	require.Equal(t, Space{Size: rawSize, Block: true}, space)

	require.NoError(t, m.growMounted(s.Group, s.Name, target, rawGrown))
	require.NoError(t, m.growMounted(s.Group, s.Name, target, rawSize), "it never shrinks")
	requireContent(t, target, rawGrown, first)
	if m.shape.Layout != volume.Linear && m.shape.Layout != volume.Thin && !inFull() {
		return // the rest does not depend on the layout
	}
	second := pattern("second ", rawGrown)
	writeDevice(t, target, 0, second)

	m.unmount(target)
	require.ErrorIs(t, m.growMounted(s.Group, s.Name, target, 2*rawGrown), ErrNotMounted)
	m.shell("lvchange -an %s/%s", group, s.Name) // as after a boot
	require.NoError(t, m.records.remove(s.Group, s.Name))
	target = m.mountRaw(s, "b")
	requireContent(t, target, rawGrown, second)
	m.unmount(target)
	require.NoError(t, m.Expand(m.ctx(), s, rawGrown+volume.MiB), "not mounted")
	requireContent(t, m.mountRaw(s, "b"), rawGrown+volume.MiB, second)
	testBlockInUse(t, m, s, target)
}

// A volume that is published or open is not removed. The volume is mounted at target.
func testBlockInUse(t *testing.T, m *machine, s volume.Spec, target string) {
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeDiscard}))
	require.NoError(t, m.CloseUnused(m.ctx()))
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrInUse, "it is handed out")
	open, err := os.Open("/dev/mapper/" + dm.BlockName(m.uuidOf(s)))
	require.NoError(t, err)
	m.unmount(target)
	require.NoError(t, m.CloseUnused(m.ctx()))
	require.ErrorIs(t, m.Remove(m.ctx(), refOf(s)), ErrInUse, "a process has it open")
	require.NoError(t, open.Close())
	require.NoError(t, m.CloseUnused(m.ctx()))
	require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	require.Empty(t, lvs())
}

func (m *machine) uuidOf(s volume.Spec) string {
	m.t.Helper()
	return m.shell("lvs --noheadings -o lv_uuid %s/%s", s.Group, s.Name)
}

func TestBlockUnmountKilledAfterEveryStep(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", rawSize)
	target, data := m.file("a"), pattern("kept ", rawSize)
	untilAlive(t, call{Dir: m.dir, Verb: "unmount", Spec: s, Target: target}, func() {
		m.clearRaw(s)
		m.mountRaw(s, "a")
		writeDevice(t, target, 0, data)
	}, func(int) {
		// Udev, which probes devices that were written to, keeps the device open for a moment.
		require.Eventually(t, func() bool {
			return m.CloseUnused(m.ctx()) == nil && shellOut("ls /dev/mapper | grep flexlvm-block") == ""
		}, time.Minute, 50*time.Millisecond)
		requireContent(t, m.mountRaw(s, "a"), rawSize, data)
	})
	m.clearRaw(s)
}

// Zeroing continues from the recorded progress, and no pod gets a partly zeroed volume.
func TestBlockZeroingGoesOn(t *testing.T) {
	m := newMachine(t)
	m.dirty()
	s := m.rawVolume("data", rawSize)
	tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind, FSType: s.FSType, Zeroed: 4 * volume.MiB}
	require.NoError(t, m.lvm.Create(m.ctx(), lvm.LogicalVolume{Group: s.Group, Name: s.Name, Size: s.DeviceSize(), Shape: s.Shape(), Tags: tags.Strings()}))
	mark := pattern("zeroed before", 4*volume.MiB)
	writeDevice(t, devicePath(s), 0, mark)
	requireContent(t, m.mountRaw(s, "a"), rawSize, mark)
	require.Equal(t, s.DeviceSize(), tagsOf(t, s.Name).Zeroed)
	m.unmount(m.file("a"))
}

// A volume that is given up before it is fully zeroed may expose data of others, so it cannot be brought
// back, even if its release was killed between the record and the tags.
func TestBlockPartlyZeroedIsNotBroughtBack(t *testing.T) {
	m := newMachine(t)
	m.dirty()
	for zeroed, name := range map[volume.Bytes]string{0: "none", 4 * volume.MiB: "half"} {
		s := m.rawVolume(name, rawSize)
		tags := volume.Tags{State: volume.Creating, FS: copyFS, Size: s.Size, Namespace: s.Namespace, Cluster: s.Cluster, Kind: s.Kind, FSType: s.FSType, Zeroed: zeroed}
		require.NoError(t, m.lvm.Create(m.ctx(), lvm.LogicalVolume{Group: s.Group, Name: s.Name, Size: s.DeviceSize(), Shape: s.Shape(), Tags: tags.Strings()}))
		lv, err := m.lvm.Volume(m.ctx(), s.Group, s.Name)
		require.NoError(t, err)
		released := tags
		released.State = volume.Unreferenced
		require.NoError(t, m.records.write(s.Group, s.Name, newRecord(lv.UUID, released)))
		require.NoError(t, m.Heal(m.ctx(), refOf(s)))
		require.Equal(t, volume.Creating, tagsOf(t, s.Name).State)

		require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
		require.True(t, tagsOf(t, s.Name).PartlyZeroed(), name)
		for _, to := range []volume.State{volume.Ready, volume.Retained} {
			_, err := m.SetState(m.ctx(), s.Group, s.Name, to)
			require.ErrorContains(t, err, "given up before all of it was zeroed")
		}
		require.Error(t, m.tryMount(s, m.file("b")))
		require.NoError(t, m.Remove(m.ctx(), refOf(s)))
	}
	s := m.rawVolume("whole", rawSize)
	m.mountRaw(s, "a")
	m.unmount(m.file("a"))
	require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{}))
	_, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
	require.NoError(t, err)
}

// With Alone, the second mount is refused, even if no process has the device open. Only a plain file is
// accepted as a target.
func TestBlockIsRefused(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", rawSize)
	m.mountRaw(s, "a")
	other := m.file("b")
	require.ErrorIs(t, m.Mount(m.ctx(), s, MountRequest{Target: other, Alone: true}), ErrInUse)
	require.ErrorContains(t, m.Mount(m.ctx(), s, MountRequest{Target: other, ReadOnly: true}), "readOnly")
	require.ErrorContains(t, m.tryMount(s, m.target("dir")), "no plain file")
	require.NoError(t, os.WriteFile(other, []byte("x"), 0o600))
	require.ErrorContains(t, m.tryMount(s, other), "not empty")
	s.FSType = volume.XFS
	for range 2 {
		require.ErrorContains(t, m.tryMount(s, m.target("dir")), "was made with block")
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}
	_, err := m.Trim(m.ctx(), refOf(s), 0)
	require.ErrorContains(t, err, "volumeMode Block")
}

// A pod writes to its device an LVM group with the same name as flexlvm's, which holds a volume that may be
// removed, and kubelet creates a loop device for the device. flexlvm does not see that group.
func TestBlockHoldsAnotherGroup(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", 64*volume.MiB)
	target := m.mountRaw(s, "a")
	loop := m.shell("losetup -f --show %s", target)
	t.Cleanup(func() { _ = shellOut("losetup -d " + loop) })
	// This LVM sees no other device, and no directory of the real group in /dev.
	m.shell(`vgcreate --yes -q --config 'devices{dir="%s" scan=["/dev"] filter=["a|^%s$|","r|.*|"]}' %s %[2]s`, m.t.TempDir(), loop, group)
	require.Equal(t, []string{string(group), string(group)}, strings.Fields(m.shell("vgs --noheadings -o vg_name 2>/dev/null")), "LVM by itself sees both")
	others := m.volume("other", 64*volume.MiB)
	m.unmount(m.mount(others, "o"))
	all, err := m.List(m.ctx())
	require.NoError(t, err)
	require.Len(t, all, 2)
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	require.Len(t, in.Pools, 1)
	require.NoError(t, m.growMounted(s.Group, s.Name, target, 72*volume.MiB))
	require.NoError(t, m.Release(m.ctx(), refOf(others), volume.Unreferenced, volume.Disposal{}))
	require.NoError(t, m.Remove(m.ctx(), refOf(others)))

	// Kubelet creates the loop device after flexlvm has listed the devices, and before LVM does.
	m.shell("losetup -d %s", loop)
	own := m.shell("truncate -s 64M %s/own; losetup -f --show %[1]s/own", m.dir)
	t.Cleanup(func() { m.shell("losetup -d %s", own) })
	m.shell("pvcreate -q %s", own)
	late := ""
	log := logrus.New()
	log.SetOutput(io.Discard)
	host := command.New(command.DefaultPath, log)
	host.Unkillable = &afterLook{Interface: host.Unkillable, do: func() { late = m.shell("losetup -f --show %s", target) }}
	t.Cleanup(func() { m.shell("losetup -d %s", late) })
	e, err := New(Config{StateDir: m.dir + "/state", LockDir: m.dir + "/lock"}, host)
	require.NoError(t, err)
	in, err = e.Inventory(m.ctx())
	require.NoError(t, err)
	require.NotEmpty(t, late)
	require.Len(t, in.Pools, 1)
	pvs, err := m.lvm.PhysicalVolumes(m.ctx())
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(pvs, func(pv lvm.PhysicalVolume) bool { return pv.Path == own }), "one that is made of a file is hidden")
	require.Len(t, strings.Fields(m.shell("vgs --noheadings -o vg_name 2>/dev/null")), 2, "LVM by itself sees both")
	writeDevice(t, target, 0, make([]byte, volume.MiB)) // otherwise the test's own commands would see it
}

// afterLook calls do before the first command that follows the engine's request for the host's filters, that
// is, after the engine has listed the devices.
type afterLook struct {
	exec.Interface
	do     func()
	looked bool
}

func (a *afterLook) CommandContext(ctx context.Context, program string, args ...string) exec.Cmd {
	switch {
	case slices.Contains(args, "lvmconfig"):
		a.looked = true
	case a.looked && a.do != nil:
		a.do()
		a.do = nil
	}
	return a.Interface.CommandContext(ctx, program, args...)
}

// Copies and snapshots hold the content as of when they were taken, up to the size of the copy.
func TestBlockCopies(t *testing.T) {
	m, _ := thinMachine(t, 2*volume.GiB)
	s := m.rawVolume("source", rawSize)
	from := m.mountRaw(s, "a")
	data := pattern("data ", rawSize)
	f, err := os.OpenFile(from, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(data) // not synced, and open
	require.NoError(t, err)
	snap := m.snapshotOf(s, "snap")
	snap.FSType = volume.Raw
	made, err := m.MakeSnapshot(m.ctx(), SnapshotRequest{Spec: snap}, stillWanted)
	require.NoError(t, err)
	require.Equal(t, s.Size, made.Size)
	require.NoError(t, f.Close())
	writeDevice(t, from, 0, pattern("later ", rawSize))

	c := m.cloneOf(snap, "copy", rawGrown)
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), c), "volumeMode")
	c.FSType = volume.Raw
	target, deaths := m.file("c"), 0
	untilAlive(t, call{Dir: m.dir, Verb: "clone", Spec: c}, func() { m.clearCopy(c) }, func(int) {
		deaths++
		requireContent(t, m.mountRaw(c, "c"), rawGrown, data)
		m.unmount(target)
	})
	require.Equal(t, 3, deaths, "snapshot; lvextend; tag ready")
	require.NotEqual(t, tagsOf(t, s.Name).FS, tagsOf(t, c.Name).FS)
	x := m.volume("xfs", 64*volume.MiB)
	m.unmount(m.mount(x, "x"))
	c = m.cloneOf(x, "raw", 64*volume.MiB)
	c.FSType = volume.Raw
	require.ErrorContains(t, m.CreateCloneAhead(m.ctx(), c), "volumeMode")
	m.unmount(from)
}

func (m *machine) clearCopy(s volume.Spec) {
	m.t.Helper()
	m.clear(s.Name)
	require.NoError(m.t, m.records.remove(s.Group, s.Name))
}
