//go:build vm

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// rulesOfUdev are the udev rules in the documentation for nodes with raw block volumes. Tests that need udev
// run only where it is installed.
const rulesOfUdev = "/05-flexlvm.rules"

// Without the rules, udev mistakes a label that a pod writes to its raw block volume for one of the host's:
// on the pod's device, on the logical volume when a boot activates it, and on the loop device that kubelet
// creates.
func TestUdevProbesNoBlockVolume(t *testing.T) {
	const rules, label = "/run/udev/rules.d/05-flexlvm.rules", "/dev/disk/by-label/of-the-host"
	m := newMachine(t)
	s := m.rawVolume("pvc-probed", 64*volume.MiB)
	links := func() string {
		m.shell("udevadm settle")
		return m.shell("readlink -f %s || true", label)
	}
	published := func() string {
		target := m.mountRaw(s, "a")
		defer m.unmount(target)
		return links()
	}
	target := m.mountRaw(s, "a")
	m.shell("mkfs.ext4 -q -L of-the-host %s", target)
	m.unmount(target)
	require.NotEqual(t, label, published(), "what the rules are for")

	volumes := map[string]bool{ // whether udev may probe them
		"snap-7f3c1c52-6c1e-4a3f-9f53-0c1d2e3f4a5b":  false, // a snapshot
		"snap-" + strings.Repeat("0f", 29):           false, // one that another snapshotter named
		"local-7f3c1c52-6c1e-4a3f-9f53-0c1d2e3f4a5b": false, // a LocalVolume
		"doomed_pvc-7f3c1c52":                        false, // being removed
		"local-data":                                 true,
		"snap-of-the-host":                           true,
	}
	for name := range volumes {
		m.shell("lvcreate --yes -q -Wn -Zn -l4 -n %s %s && mkfs.ext4 -q -L of-another /dev/%[2]s/%[1]s", name, group)
		t.Cleanup(func() { m.shell("lvremove --yes -q %s/%s", group, name) })
		require.True(t, m.udevLinks(name), name)
	}

	given, err := os.ReadFile(rulesOfUdev)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(rules), 0o755))
	require.NoError(t, os.WriteFile(rules, given, 0o644))
	t.Cleanup(func() { m.shell("rm %s && udevadm control --reload", rules) })
	m.shell("udevadm control --reload")
	require.Equal(t, label, published(), "a link that leads nowhere is its own end")
	m.shell("lvchange -ay %s/%s", group, s.Name)
	require.Equal(t, label, links())
	m.shell("lvchange -an %s/%s", group, s.Name)

	for name, mayBeProbed := range volumes {
		require.Equal(t, mayBeProbed, m.udevLinks(name), name)
	}

	target = m.mountRaw(s, "a")
	of := "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-probed/uid"
	m.shell("mkdir -p $(dirname %s) && cp -a %s %[1]s", of, target)
	loop := m.shell("losetup -f --show %s", of)
	t.Cleanup(func() { m.shell("losetup -d %s; rm %s", loop, of) })
	require.Equal(t, label, links())
}

// udevLinks activates a logical volume, whose file system has the label of-another, and reports whether udev links
// to it by that label. The volume is inactive afterwards.
func (m *machine) udevLinks(name string) bool {
	m.t.Helper()
	m.shell("udevadm settle; lvchange -an %s/%s; lvchange -ay %[1]s/%[2]s; udevadm settle", group, name)
	defer m.shell("lvchange -an %s/%s; udevadm settle", group, name)
	return m.shell("readlink -f /dev/disk/by-label/of-another || true") == m.shell("readlink -f /dev/%s/%s", group, name)
}
