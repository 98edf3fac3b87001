//go:build vm

package node

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// scanVolumes sets scan_lvs = 1 on the host while the test runs.
func scanVolumes(t *testing.T) {
	t.Helper()
	const conf, section = "/etc/lvm/lvmlocal.conf", "devices {\n"
	before, err := os.ReadFile(conf)
	require.NoError(t, err)
	text := string(before)
	if !strings.Contains(text, section) {
		text += section + "}\n"
	}
	text = strings.Replace(text, section, section+"\tscan_lvs = 1\n", 1)
	require.NoError(t, os.WriteFile(conf, []byte(text), 0o644))
	t.Cleanup(func() { require.NoError(t, os.WriteFile(conf, before, 0o644)) })
	require.Equal(t, "scan_lvs=1", shellOut("lvmconfig --type full devices/scan_lvs"))
}

// On a host whose LVM scans logical volumes, it does not see what a pod has written to its raw block volume,
// whether or not that is published, but does see one of the host's groups on a logical volume.
func TestBlockOnAHostThatScansVolumes(t *testing.T) {
	m := newMachine(t)
	s := m.rawVolume("data", 64*volume.MiB)
	target := m.mountRaw(s, "a")
	loop := m.shell("losetup -f --show %s", target)
	m.shell(`vgcreate --yes -q --config 'devices{dir="%s" scan=["/dev"] filter=["a|^%s$|","r|.*|"]}' %s %[2]s`, m.t.TempDir(), loop, group)
	m.shell("losetup -d %s; sync", loop)
	t.Cleanup(func() {
		m.shell("dd if=/dev/zero of=%s bs=1M count=4 oflag=direct conv=fsync status=none", devicePath(s))
	})
	scanVolumes(t) // its cleanup runs before the one above
	own := func(name string) bool {
		all, err := m.lvm.Groups(m.ctx())
		require.NoError(t, err)
		seen := 0
		for _, g := range all {
			if string(g.Name) == name {
				seen++
			}
		}
		require.LessOrEqual(t, seen, 1, name)
		return seen == 1
	}
	for _, published := range []bool{true, false} {
		if !published {
			m.unmount(target)
			require.NoError(t, m.CloseUnused(m.ctx()))
		}
		require.Len(t, strings.Fields(m.shell("vgs --noheadings -o vg_name -S vg_name=%s 2>/dev/null", group)), 2, "LVM by itself sees both")
		require.True(t, own(string(group)))
		others := specOf("other", 64*volume.MiB)
		m.unmount(m.mount(others, "o"))
		require.NoError(t, m.Release(m.ctx(), refOf(others), volume.Unreferenced, volume.Disposal{}))
		require.NoError(t, m.Remove(m.ctx(), refOf(others)))
		require.NoError(t, m.records.remove(others.Group, others.Name))
	}
	m.shell("lvcreate --yes -q --config 'devices{scan_lvs=0}' -L 64m -n below %s", group)
	below := "/dev/mapper/" + volume.DeviceName(group, "below")
	m.shell(`vgcreate --yes -q --config 'devices{filter=["a|^%s$|","r|.*|"]}' nested %[1]s`, below)
	t.Cleanup(func() {
		m.shell("vgremove --yes -q nested && lvremove --yes -q --config 'devices{scan_lvs=0}' %s/below", group)
	})
	require.True(t, own("nested"))
	_, err := m.lvm.Volume(m.ctx(), "nested", "none")
	require.ErrorIs(t, err, lvm.ErrNoVolume)
}
