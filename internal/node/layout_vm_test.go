//go:build vm

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// devicesOf returns the devices of each piece of a volume: of the volume's own segments, or those of its
// copies.
func devicesOf(m *machine, g volume.Group, n volume.Name) map[string][]string {
	m.t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(m.shell(`lvs --all --noheadings -o lv_name,devices -S 'lv_name="%s" || lv_parent="%s"' %s`, n, n, g)) {
		fields := strings.Fields(line)
		require.Len(m.t, fields, 2)
		for d := range strings.SplitSeq(fields[1], ",") {
			d, _, _ = strings.Cut(d, "(")
			out[fields[0]] = append(out[fields[0]], d)
		}
	}
	return out
}

// requireApart checks that no copies share a device: they would be lost together.
func requireApart(m *machine, g volume.Group, n volume.Name) {
	m.t.Helper()
	owner := map[string]string{}
	for piece, devices := range devicesOf(m, g, n) {
		_, number, ok := strings.Cut(strings.Trim(piece, "[]"), "_rimage_")
		if !ok {
			continue
		}
		for _, d := range devices {
			if other, taken := owner[d]; taken {
				require.Equal(m.t, other, number, "%s holds a piece of two copies", d)
			}
			owner[d] = number
		}
	}
	require.GreaterOrEqual(m.t, len(owner), 2)
}

func TestLayoutsLieAsTheyShould(t *testing.T) {
	m := newMachine(t)
	for name, h := range map[string]volume.Shape{
		"plain": {Layout: volume.Linear},
		"two":   {Layout: volume.Striped, Stripes: 2, StripeKiB: 4},
		"four":  {Layout: volume.Striped, Stripes: 4, StripeKiB: 1024},
		"pair":  {Layout: volume.Raid1, Mirrors: 1},
		"trio":  {Layout: volume.Raid1, Mirrors: 2},
	} {
		m.shape = h
		s := m.volume(name, 64*volume.MiB)
		m.mount(s, name)
		pieces := devicesOf(m, group, s.Name)
		if h.Layout == volume.Raid1 {
			requireApart(m, group, s.Name)
			require.Len(t, pieces, 1+2*(h.Mirrors+1), "the volume, its copies and their metadata")
		} else {
			slices.Sort(pieces[name])
			require.Len(t, slices.Compact(pieces[name]), h.Devices())
		}
	}
	in, err := m.Inventory(m.ctx())
	require.NoError(t, err)
	require.Len(t, in.Volumes, 5)
	var sum volume.Bytes
	for _, v := range in.Volumes {
		sum += v.Allocated
		require.Empty(t, v.Problem)
		require.Equal(t, volume.Spec{Size: v.Size, Layout: v.Layout, Stripes: v.Stripes, Mirrors: v.Mirrors}.Charge(), v.Allocated)
		requireOn(m, v)
	}
	p := in.Pools[0]
	require.Equal(t, 5, p.LVs)
	require.Equal(t, p.Size-p.Free, sum, "all that they take is told")
	listed, err := m.List(m.ctx())
	require.NoError(t, err)
	for i := range listed { // the copies may be in sync to a higher degree meanwhile
		listed[i].SyncPercent, in.Volumes[i].SyncPercent = "", ""
		in.Volumes[i].ByDevice = nil // which needs the pieces of all devices
	}
	require.Equal(t, in.Volumes, listed, "one report as the other")
}

// requireOn checks a volume's reported devices: they are the devices that it is on, and their sum is the size
// that it takes.
func requireOn(m *machine, v inventory.Volume) {
	m.t.Helper()
	there, sum := map[string]bool{}, volume.Bytes(0)
	for _, devices := range devicesOf(m, v.Group, v.Name) {
		for _, d := range devices {
			if strings.HasPrefix(d, "/dev/") { // else it is a piece of the volume
				there[d] = true
			}
		}
	}
	for d, held := range v.ByDevice {
		require.True(m.t, there[d], "%s is not on %s", v.Name, d)
		sum += held
	}
	require.Len(m.t, v.ByDevice, len(there))
	require.Equal(m.t, v.Allocated, sum)
}

// The space that a device gets back is fragmented, and LVM can still create a copy or a stripe in it: only
// the total free space of each device matters.
func TestPiecesOfADeviceServe(t *testing.T) {
	for _, h := range []volume.Shape{{Layout: volume.Raid1, Mirrors: 1}, {Layout: volume.Striped, Stripes: 2, StripeKiB: 64}} {
		m := newMachine(t)
		m.fillDevices(volume.GiB, volume.GiB, 0, 0)
		for i := range 6 {
			name := fmt.Sprintf("piece-%d", i)
			t.Cleanup(func() { m.clear(volume.Name(name)) })
			m.shell("lvcreate --yes -an -Zn -Wn -n %s -L 320m %s %s", name, group, testDisks()[i%2])
		}
		for _, i := range []int{0, 1, 4, 5} { // every other one of each device
			m.clear(volume.Name(fmt.Sprintf("piece-%d", i)))
		}
		in, err := m.Inventory(m.ctx())
		require.NoError(t, err)
		m.shape = h
		size := volume.Largest(in.Pools[0].DeviceFree, volume.Spec{Layout: h.Layout, Stripes: h.Stripes, Mirrors: h.Mirrors}, in.Pools[0].Extent)
		require.Greater(t, size, 320*volume.MiB)
		s := m.volume("data", size)
		m.unmount(m.mount(s, "a"))
		in, err = m.Inventory(m.ctx())
		require.NoError(t, err)
		require.Len(t, in.Volumes, 1)
		requireOn(m, in.Volumes[0])
		for _, name := range []volume.Name{s.Name, "piece-2", "piece-3"} {
			m.clear(name)
		}
		for i := range 4 {
			m.clear(volume.Name(fmt.Sprintf("filler-%d", i)))
		}
	}
}

// An existing volume is served with its layout, whatever layout the option has.
func TestVolumeOfAnotherLayoutIsServed(t *testing.T) {
	newMachine(t).thinPool(4 * volume.GiB)
	for _, was := range shapes {
		for _, is := range shapes {
			if is == was || !inFull() && was.Layout != volume.Linear && is.Layout != volume.Linear {
				continue
			}
			m := newMachine(t)
			m.shape = was
			s := m.volume("data", 64*volume.MiB)
			target := m.mount(s, "a")
			require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
			m.unmount(target)
			s.Layout, s.Stripes, s.StripeKiB, s.Mirrors = is.Layout, is.Stripes, is.StripeKiB, is.Mirrors
			s.ThinPool = is.ThinPool
			for range 2 { // with a record and without
				require.FileExists(t, m.mount(s, "a")+"/f")
				require.NoError(t, m.records.remove(s.Group, s.Name))
				m.unmount(target)
			}
			require.NoError(t, m.Expand(m.ctx(), s, grown))
			m.mount(s, "a")
			require.Equal(t, grown-volume.Block, allocate(t, target+"/data"))
			v, err := m.SetState(m.ctx(), s.Group, s.Name, volume.Ready)
			require.NoError(t, err)
			require.Equal(t, was, v.Shape, "it stays what it was")
			m.unmount(target)
			m.clear(s.Name)
		}
	}
}

// fillDevices leaves that much free space on each device of the group.
func (m *machine) fillDevices(left ...volume.Bytes) {
	m.t.Helper()
	for i, d := range testDisks()[:len(left)] {
		name := fmt.Sprintf("filler-%d", i)
		m.t.Cleanup(func() { m.clear(volume.Name(name)) })
		m.shell("lvcreate --yes -an -Zn -Wn -n %s -L $(( $(pvs --noheadings --nosuffix --units b -o pv_free %s) - %d ))b %s %s", name, d, int64(left[i]), group, d)
	}
}

func TestTooFewDevices(t *testing.T) {
	m := newMachine(t)
	m.fillDevices(volume.GiB, 200*volume.MiB, 200*volume.MiB, 64*volume.MiB)
	for name, c := range map[string]struct {
		shape volume.Shape
		says  string
	}{
		"more stripes than devices": {volume.Shape{Layout: volume.Striped, Stripes: 5, StripeKiB: 64}, "needs 62914560 bytes (60 MiB) on each of 5 devices of flexlvm-test, and 4 of 4 have that"},
		"four stripes":              {volume.Shape{Layout: volume.Striped, Stripes: 4, StripeKiB: 64}, "needs 79691776 bytes (76 MiB) on each of 4 devices of flexlvm-test, and 3 of 4 have that"},
		"two copies":                {volume.Shape{Layout: volume.Raid1, Mirrors: 1}, "needs 318767104 bytes (304 MiB) on each of 2 devices of flexlvm-test, and 1 of 4 have that"},
	} {
		m.shape = c.shape
		s := m.volume("data", 64*volume.MiB)
		err := m.tryMount(s, m.target("a"))
		require.ErrorIs(t, err, lvm.ErrNoSpace, name)
		require.ErrorContains(t, err, c.says, name)
		require.NotContains(t, lvs(), "data")
	}
	m.shape = volume.Shape{Layout: volume.Striped, Stripes: 3, StripeKiB: 64}
	m.mount(m.volume("data", 64*volume.MiB), "a")
}

// If one of the devices is full, LVM by itself would put the end of one copy on the device of another.
func TestCopiesGrowWhereTheyLie(t *testing.T) {
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Raid1, Mirrors: 1}
	m.fillDevices(400*volume.MiB, 2*volume.GiB, 0, 0)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.clear("filler-2")
	m.clear("filler-3")
	before := devicesOf(m, group, s.Name)
	err := m.Expand(m.ctx(), s, volume.GiB)
	require.ErrorIs(t, err, lvm.ErrNoSpace)
	require.ErrorContains(t, err, "on each of 2 devices of flexlvm-test, and 1 of 2 have that")
	require.ErrorContains(t, err, "its copies grow only where they lie")
	require.Equal(t, before, devicesOf(m, group, s.Name))
	size, _, _ := df(t, target)
	require.Equal(t, s.Size, size)

	m.clear("filler-0")
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB))
	requireApart(m, group, s.Name)
	require.Equal(t, volume.GiB, allocate(t, target+"/data"))
}

// A striped volume may continue on another device without any disadvantage.
func TestStripesGrowElsewhere(t *testing.T) {
	m := newMachine(t)
	m.shape = volume.Shape{Layout: volume.Striped, Stripes: 2, StripeKiB: 64}
	m.fillDevices(200*volume.MiB, 200*volume.MiB, 0, 0)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	m.clear("filler-2")
	m.clear("filler-3")
	require.NoError(t, m.Expand(m.ctx(), s, volume.GiB))
	require.Equal(t, volume.GiB, allocate(t, target+"/data"))
	require.Equal(t, "striped striped", m.shell("echo $(lvs --noheadings -o segtype %s/data)", group))
}

// A frail group is on two devices that can be made to fail.
type frail struct {
	*machine
	group volume.Group
	disk  string
}

const frailSize = 2000 // MiB

func newFrail(m *machine) frail {
	f := frail{machine: m, group: "frail", disk: testDisks()[len(testDisks())-1]}
	m.t.Setenv("DM_DISABLE_UDEV", "1") // dmsetup creates the nodes itself
	for i, name := range []string{"frail0", "frail1"} {
		m.shell("dmsetup create %s --table '%s' && dmsetup mknodes %s && pvcreate --yes /dev/mapper/%s", name, f.table(i), name, name)
		m.t.Cleanup(func() { m.shell("dmsetup remove %s", name) })
	}
	m.shell("vgcreate %s /dev/mapper/frail0 /dev/mapper/frail1", f.group)
	m.t.Cleanup(func() { m.shell("vgremove --yes %s", f.group) })
	return f
}

func (f frail) table(i int) string {
	return fmt.Sprintf("0 %d linear %s %d", frailSize<<11, f.disk, (1+i*frailSize)<<11)
}

func (f frail) set(i int, table string) {
	f.t.Helper()
	f.shell("dmsetup suspend --noflush frail%d && dmsetup reload frail%d --table '%s' && dmsetup resume frail%d", i, i, table, i)
}

func (f frail) fail(i int) { f.set(i, fmt.Sprintf("0 %d error", frailSize<<11)) }

func (f frail) volume1(t *testing.T) inventory.Volume {
	t.Helper()
	in, err := f.Inventory(f.ctx())
	require.NoError(t, err)
	i := slices.IndexFunc(in.Volumes, func(v inventory.Volume) bool { return v.Group == f.group })
	require.GreaterOrEqual(t, i, 0)
	return in.Volumes[i]
}

// One of two disks fails: the volume stays usable, can be mounted again, even after a boot, and is complete
// again when the disk is back. Nothing grows or is created meanwhile.
func TestDegraded(t *testing.T) {
	m := newMachine(t)
	f := newFrail(m)
	s := specOf("data", 64*volume.MiB)
	s.Group, s.Layout = f.group, volume.Raid1
	target := m.mount(s, "a")
	t.Cleanup(func() { _ = m.Unmount(m.ctx(), target) })
	require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
	require.Eventually(t, func() bool { return f.volume1(t).SyncPercent == "100.00" }, 5*time.Minute, time.Second)
	require.Empty(t, f.volume1(t).Problem)
	require.False(t, f.volume1(t).Degraded)

	f.fail(1)
	m.shell("dd if=/dev/zero of=%s/more bs=64k count=16 conv=fsync status=none", target)
	v := f.volume1(t)
	require.True(t, v.Degraded)
	require.Contains(t, v.Problem, `degraded: LVM says "partial" of its 2 copies; it can still be used`)
	require.Equal(t, volume.Ready, v.State)
	err := m.Expand(m.ctx(), s, grown)
	require.ErrorIs(t, err, lvm.ErrPartial)
	require.ErrorContains(t, err, "frail lacks 1 of its 2 devices")
	for _, layout := range []volume.Layout{volume.Raid1, volume.Linear} {
		other := s
		other.Name, other.Layout = "other", layout
		require.ErrorIs(t, m.tryMount(other, m.target("other")), lvm.ErrPartial)
	}

	m.unmount(target)
	m.shell("vgchange -an %s", f.group)
	m.mount(s, "a")
	b, err := os.ReadFile(filepath.Join(target, "f"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(b))
	require.True(t, f.volume1(t).Degraded)

	f.set(1, f.table(1))
	m.shell("lvchange --refresh %s/data", f.group)
	require.Eventually(t, func() bool { v := f.volume1(t); return !v.Degraded && v.SyncPercent == "100.00" }, 5*time.Minute, time.Second)
	require.NoError(t, m.Expand(m.ctx(), s, grown))
	m.unmount(target)
}
