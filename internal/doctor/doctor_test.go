package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/install"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// script answers a command with the output of its longest matching prefix.
type script map[string]string

func (s script) run(argv ...string) (string, error) {
	line, best, answer := strings.Join(argv, " "), -1, ""
	for prefix, out := range s {
		if strings.HasPrefix(line, prefix) && len(prefix) > best {
			best, answer = len(prefix), out
		}
	}
	switch {
	case best < 0:
		return "", commandtest.Missing(argv...)
	case answer == "fails":
		return "", exec.CodeExitError{Code: 5, Err: fmt.Errorf("run %s: it went wrong", line)}
	}
	return answer, nil
}

func (s script) Command(name string, args ...string) exec.Cmd {
	return commandtest.Func(s.run).Command(name, args...)
}

func (s script) CommandContext(_ context.Context, name string, args ...string) exec.Cmd {
	return s.Command(name, args...)
}

func (s script) LookPath(name string) (string, error) { return name, nil }

type kernel struct {
	release string
	user    bool
	xfs     error
	owners  error
}

func (k kernel) Release() (string, error) { return k.release, nil }
func (k kernel) Root() bool               { return !k.user }
func (k kernel) OpenXFS() error           { return k.xfs }
func (k kernel) MapOwners() error         { return k.owners }

type nodeTools struct {
	groups  []lvm.VolumeGroup
	volumes []inventory.Volume
	pools   []lvm.ThinPool
	err     error
}

func (i nodeTools) Groups(context.Context) ([]lvm.VolumeGroup, error) { return i.groups, i.err }
func (i nodeTools) ThinPools(context.Context) ([]lvm.ThinPool, error) { return i.pools, i.err }
func (i nodeTools) List(context.Context) ([]inventory.Volume, error)  { return i.volumes, i.err }

func goodTools() script {
	const lvm = "  LVM version:     2.03.16(2) (2022-05-18)\n"
	return script{
		"lvs --version": lvm, "lvcreate --version": lvm, "vgcreate --version": lvm,
		"mkfs.xfs -V": "mkfs.xfs version 6.1.0\n", "xfs_db -V": "xfs_db version 6.1.0\n", "wipefs --version": "wipefs from util-linux 2.38.1\n",
		"blkid --version": "blkid from util-linux 2.38.1  (libblkid 2.38.1, 04-Aug-2022)\n",
		"lvmconfig --type full activation/snapshot_autoextend_threshold": "snapshot_autoextend_threshold=100\n",
		"lvmconfig --type full devices/scan_lvs":                         "scan_lvs=0\n",
		"lvmconfig --type full devices/filter":                           "filter=[\"a|.*|\"]\n",
		"lvmconfig --type full devices/global_filter":                    "global_filter=[\"a|.*|\"]\n",
	}
}

func goodGroup() lvm.VolumeGroup {
	return lvm.VolumeGroup{
		Name: "flexlvm", UUID: "Fd4uCt-7lvd-Lkxg-5VKu-rGYm-Zhkc-0NpEMk", Size: 100 * volume.GiB, Free: 60 * volume.GiB,
		Extent: 4 * volume.MiB, MetadataSize: 17 * volume.MiB, MetadataFree: 8 * volume.MiB, MetadataCopies: 1, Volumes: 3, Devices: 1,
	}
}

func goodPool() lvm.ThinPool {
	return lvm.ThinPool{
		Group: "flexlvm", GroupUUID: goodGroup().UUID, Name: "thinpool", Size: 30 * volume.GiB, Used: 3 * volume.GiB,
		Metadata: 64 * volume.MiB, MetadataUsed: 8 * volume.MiB, Chunk: 64 * volume.KiB, Volumes: 2,
		Active: true, ErrorWhenFull: true, Zero: true,
	}
}

// A patient is a healthy node that a test case changes.
type patient struct {
	root string
	cfg  Config
	host Host
}

func healthy(t *testing.T) *patient {
	t.Helper()
	root := t.TempDir()
	place, err := install.At(filepath.Join(root, "exec"))
	require.NoError(t, err)
	p := &patient{root: root, cfg: Config{
		Group: "flexlvm", Place: place, Version: "v0.1.0", Dirs: []Dir{{"lock directory", "/run/lock/flexlvm"}},
	}, host: Host{
		Tools:     goodTools(),
		Driver:    script{"flexlvm init": `{"status":"Success","capabilities":{}}`, "flexlvm version": "flexlvm v0.1.0 (go1.26.8)\n"},
		Inventory: nodeTools{groups: []lvm.VolumeGroup{goodGroup()}},
		Kernel:    kernel{release: "6.1.0-18-amd64"},
		Root:      root,
	}}
	p.write(t, "proc/misc", "236 device-mapper\n144 nvram\n")
	p.write(t, "proc/fs/xfs/xqmstat", "")
	p.write(t, "proc/sys/crypto/fips_enabled", "0\n")
	p.process(t, "1", "systemd", "", "0", "")
	p.process(t, "77", "kubelet", "/usr/bin/kubelet\x00--volume-plugin-dir="+place.PluginDir()+"\x00--v=2\x00", "0", "")
	p.write(t, "exec/flexlvm.io~flexlvm/flexlvm", "binary")
	require.NoError(t, os.Chmod(place.Driver(), 0o755))
	return p
}

func (p *patient) write(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(p.root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
}

func (p *patient) examine() []Finding { return New(p.cfg, p.host).Examine(context.Background()) }

func TestHealthyNode(t *testing.T) {
	findings := healthy(t).examine()
	for _, f := range findings {
		require.Equal(t, OK, f.Level, "%+v", f)
		require.Empty(t, f.Do)
	}
	require.Equal(t, OK, Worst(findings))
	require.GreaterOrEqual(t, len(findings), 15)
	at := slices.IndexFunc(findings, func(f Finding) bool { return f.Check == "cryptsetup" })
	require.Contains(t, findings[at].Detail, "is needed for encrypted volumes alone", "most nodes can do without it")
}

func TestHealthyThinPool(t *testing.T) {
	p := healthy(t)
	tools := goodTools()
	tools["thin_check -V"] = "0.9.0\n"
	p.host.Tools = tools
	full := goodGroup()
	full.Free, full.Size = 0, 30*volume.GiB+192*volume.MiB
	p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{full}, pools: []lvm.ThinPool{goodPool()}}
	findings := p.examine()
	require.Equal(t, OK, Worst(findings), "that nothing is left beside a thin pool is no fault: %+v", findings)
	require.Contains(t, findings, Finding{Level: OK, Check: "thin pool flexlvm/thinpool", Detail: "30 GiB, 27 GiB free, metadata 12 % full, 2 volumes"})
}

func TestFindings(t *testing.T) {
	group := func(change func(*lvm.VolumeGroup)) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			g := goodGroup()
			change(&g)
			p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{g}}
		}
	}
	tool := func(name, answer string) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			s := goodTools()
			for k := range s {
				if strings.HasPrefix(k, name+" ") {
					delete(s, k)
					if answer != "" {
						s[k] = answer
					}
				}
			}
			p.host.Tools = s
		}
	}
	pool := func(change func(*lvm.ThinPool)) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			one := goodPool()
			change(&one)
			tools := goodTools()
			tools["thin_check -V"] = "0.9.0\n"
			p.host.Tools = tools
			p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{goodGroup()}, pools: []lvm.ThinPool{one}}
		}
	}
	volumes := func(v inventory.Volume) func(*testing.T, *patient) {
		return func(_ *testing.T, p *patient) {
			v.Group, v.Name = "flexlvm", "pvc-1"
			p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{goodGroup()}, volumes: []inventory.Volume{v}}
		}
	}
	for name, c := range map[string]struct {
		hurt  func(t *testing.T, p *patient)
		level Level
		check string
		says  string
		do    string
	}{
		"not root":         {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", user: true} }, Fail, "user", "not running as root", "as root"},
		"old kernel":       {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "5.4.0-100-generic"} }, Fail, "kernel", "5.4.0-100-generic", "5.6 or later"},
		"very old kernel":  {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "4.18.0-513.el8"} }, Fail, "kernel", "4.18", "5.6 or later"},
		"strange kernel":   {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "next"} }, Warn, "kernel", "not a version", "5.6 or later"},
		"no device mapper": {func(t *testing.T, p *patient) { p.write(t, "proc/misc", "144 nvram\n") }, Fail, "device-mapper", "no device mapper", "modprobe dm_mod"},
		"no XFS":           {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", xfs: unix.ENODEV} }, Fail, "xfs", "no XFS", "module xfs"},
		"no mount calls":   {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", xfs: unix.ENOSYS} }, Fail, "xfs", "cannot ask", "5.6 or later"},
		"no right to ask":  {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", xfs: unix.EPERM} }, Warn, "xfs", "cannot ask", "as root"},
		"no quota": {func(t *testing.T, p *patient) {
			require.NoError(t, os.Remove(filepath.Join(p.root, "proc/fs/xfs/xqmstat")))
		}, Fail, "xfs", "no quota", "CONFIG_XFS_QUOTA"},
		"owners are not mapped": {func(_ *testing.T, p *patient) {
			p.host.Kernel = kernel{release: "5.10.0", owners: fmt.Errorf("%w: use Linux 5.12", mount.ErrNoMapping)}
		}, Warn, "readers", "only the container runtime keeps consumers from writing to datasets: owners cannot be mapped: use Linux 5.12", "readOnly: true"},
		"namespaces used up":    {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", owners: unix.ENOSPC} }, Fail, "readers", "no dataset can be mounted for consumers: no space left", "lsns -t user"},
		"mapping not found out": {func(_ *testing.T, p *patient) { p.host.Kernel = kernel{release: "6.1.0", owners: unix.ENOMEM} }, Warn, "readers", "cannot allocate memory", "as root"},

		"no lvm": {tool("lvcreate", ""), Fail, "lvcreate", "install the package that holds it (lvm2)", "on the host itself"},
		"old cryptsetup": {func(_ *testing.T, p *patient) {
			tools := goodTools()
			tools["cryptsetup --version"] = "cryptsetup 2.1.0\n"
			p.host.Tools = tools
		}, Fail, "cryptsetup", "version 2.1.0 lacks deriving one key at a time", "2.2 or later"},
		"FIPS mode":   {func(t *testing.T, p *patient) { p.write(t, "proc/sys/crypto/fips_enabled", "1\n") }, Warn, "FIPS mode", "may then refuse argon2id", "keep them on other nodes (allowedTopologies of their class)"},
		"no xfsprogs": {tool("mkfs.xfs", ""), Fail, "mkfs.xfs", "xfsprogs", "on the host itself"},
		"old lvm":     {tool("lvs", "LVM version: 2.02.98(2)"), Fail, "lvs", "version 2.02.98 lacks reports in JSON", "2.02.158"},
		"broken lvm":  {tool("lvs", "fails"), Fail, "lvs", "it went wrong", "reinstall"},
		"mute lvm":    {tool("lvs", "hello"), Warn, "lvs", "does not report", "2.02.158"},

		"no group":         {func(_ *testing.T, p *patient) { p.host.Inventory = nodeTools{} }, Fail, "group flexlvm", "no volume group at all", "if it was there, bring its disks back (see \"devices file\"); otherwise create it with `flexlvm vg create --name flexlvm"},
		"another group":    {group(func(g *lvm.VolumeGroup) { g.Name = "system" }), Fail, "group flexlvm", "it sees system", "--group"},
		"LVM fails":        {func(_ *testing.T, p *patient) { p.host.Inventory = nodeTools{err: errors.New("locked")} }, Fail, "group flexlvm", "locked", "vgs"},
		"missing device":   {group(func(g *lvm.VolumeGroup) { g.Missing = 1 }), Fail, "group flexlvm", "1 of 1 device is missing", "vgextend --restoremissing"},
		"no metadata":      {group(func(g *lvm.VolumeGroup) { g.Devices = 3 }), Warn, "group flexlvm metadata copies", "2 of 3 devices are without a copy", "vgchange --vgmetadatacopies all flexlvm"},
		"exported":         {group(func(g *lvm.VolumeGroup) { g.Exported = true }), Fail, "group flexlvm", "it is exported", "vgimport flexlvm"},
		"nearly full":      {group(func(g *lvm.VolumeGroup) { g.Free = 9 * volume.GiB }), Warn, "group flexlvm", "9 GiB free of 100 GiB", "vgextend"},
		"large extents":    {group(func(g *lvm.VolumeGroup) { g.Extent = 64 * volume.MiB }), Warn, "group flexlvm extents", "64 MiB", "extents of 4 MiB"},
		"small metadata":   {group(func(g *lvm.VolumeGroup) { g.MetadataSize, g.MetadataFree = volume.MiB, 500*volume.KiB }), Warn, "group flexlvm metadata", "some hundreds", "flexlvm vg create"},
		"metadata filling": {group(func(g *lvm.VolumeGroup) { g.MetadataFree = volume.MiB }), Warn, "group flexlvm metadata", "(11 %)", "the node daemon evicts released volumes for it; if these are not enough, delete claims"},
		"metadata full":    {group(func(g *lvm.VolumeGroup) { g.MetadataFree = 512 }), Fail, "group flexlvm metadata", "(0 %)", "delete claims that nobody needs (never logical volumes by hand)"},
		"metadata unknown": {group(func(g *lvm.VolumeGroup) { g.MetadataFree = 0 }), Fail, "group flexlvm metadata", "(0 %), as LVM 2.02 always reports with lvmetad", "first remove a logical volume of another program (never flexlvm's by hand), because LVM may not have room to write even a release; or annotate the PersistentVolumes of claims that nobody needs (`kubectl annotate pv PV flexlvm.io/reclaim=immediate --overwrite`)"},

		"thin pool queues":   {pool(func(p *lvm.ThinPool) { p.ErrorWhenFull = false }), Fail, "thin pool flexlvm/thinpool", "lvchange --errorwhenfull y flexlvm/thinpool", "no volume is promised"},
		"thin pool filling":  {pool(func(p *lvm.ThinPool) { p.Used = 24 * volume.GiB }), Warn, "thin pool flexlvm/thinpool", "80 % full", "lvextend --size +SIZE flexlvm/thinpool`, or delete claims that nobody needs (never logical volumes by hand)"},
		"thin pool metadata": {pool(func(p *lvm.ThinPool) { p.MetadataUsed = 60 * volume.MiB }), Warn, "thin pool flexlvm/thinpool", "metadata is 93 % full", "or delete claims and VolumeSnapshots in the pool that nobody needs (never logical volumes by hand)"},
		"no thin_check": {func(_ *testing.T, p *patient) {
			p.host.Inventory = nodeTools{groups: []lvm.VolumeGroup{goodGroup()}, pools: []lvm.ThinPool{goodPool()}}
		}, Warn, "thin_check", "thin-provisioning-tools", "install"},

		"lock directory in the way": {func(t *testing.T, p *patient) { p.write(t, "run/lock/flexlvm", "") }, Fail, "lock directory", "not a directory", "move it away"},
		"no kubelet":                {func(t *testing.T, p *patient) { p.write(t, "proc/77/comm", "sshd\n") }, Warn, "plugin directory", "no kubelet", "--volume-plugin-dir"},
		"kubelet looks elsewhere": {func(t *testing.T, p *patient) {
			p.write(t, "proc/77/cmdline", "kubelet\x00--volume-plugin-dir\x00/opt/exec\x00")
		}, Fail, "plugin directory", `kubelet looks in "/opt/exec"`, "--plugin-dir /opt/exec"},
		"kubelet's file says so": {func(t *testing.T, p *patient) {
			p.write(t, "proc/77/cmdline", "kubelet\x00--config=/var/lib/kubelet/config.yaml\x00")
			p.write(t, "var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\nvolumePluginDir: \"/var/exec\"\n")
		}, Fail, "plugin directory", `kubelet looks in "/var/exec"`, "--plugin-dir /var/exec"},
		"kubelet's file is JSON on one line": {func(t *testing.T, p *patient) {
			p.write(t, "proc/77/cmdline", "kubelet\x00--config=/var/lib/kubelet/config.json\x00")
			p.write(t, "var/lib/kubelet/config.json", `{"kind": "KubeletConfiguration", "volumePluginDir": "/var/exec", "authentication": {"x509": {}}}`)
		}, Fail, "plugin directory", `kubelet looks in "/var/exec"`, "--plugin-dir /var/exec"},
		"kubelet's file has a comment": {func(t *testing.T, p *patient) {
			p.write(t, "proc/77/cmdline", "kubelet\x00--config=/var/lib/kubelet/config.yaml\x00")
			p.write(t, "var/lib/kubelet/config.yaml", "logging:\n  volumePluginDir: /deeper\nvolumePluginDir: '/var/exec' # on this node\n")
		}, Fail, "plugin directory", `kubelet looks in "/var/exec"`, "--plugin-dir /var/exec"},
		"no driver":                 {func(t *testing.T, p *patient) { require.NoError(t, os.Remove(p.cfg.Place.Driver())) }, Fail, "driver", "is not there", "flexlvm install"},
		"driver not for run":        {func(t *testing.T, p *patient) { require.NoError(t, os.Chmod(p.cfg.Place.Driver(), 0o644)) }, Fail, "driver", "not a program", "flexlvm install"},
		"driver is broken":          {func(_ *testing.T, p *patient) { p.host.Driver = script{"flexlvm": "fails"} }, Fail, "driver", "does not answer `init`: run flexlvm init", "flexlvm install"},
		"driver is another program": {func(_ *testing.T, p *patient) { p.host.Driver = script{"flexlvm": "hello"} }, Fail, "driver", "does not answer", "flexlvm install"},
		"driver is older":           {func(_ *testing.T, p *patient) { p.cfg.Version = "v0.2.0" }, Warn, "driver", "v0.1.0 is installed, this program is v0.2.0", "flexlvm install"},
		"a file beside the driver":  {func(t *testing.T, p *patient) { p.write(t, "exec/flexlvm.io~flexlvm/flexlvm.old", "") }, Warn, "driver", "flexlvm.old", "move it away"},
		"installation cut short":    {func(t *testing.T, p *patient) { p.write(t, "exec/flexlvm.io~flexlvm/.flexlvm.tmp", "") }, Warn, "driver", "cut short", "flexlvm install"},

		"half made volume":    {volumes(inventory.Volume{State: volume.Creating}), Warn, "volume flexlvm/pvc-1", "it may hold data", "flexlvm volumes forget pvc-1"},
		"half removed volume": {volumes(inventory.Volume{State: volume.Doomed}), Warn, "volume flexlvm/pvc-1", "removal has begun", "the node daemon finishes it"},
		"nonsense tags":       {volumes(inventory.Volume{Problem: "flexlvm.size= is empty"}), Fail, "volume flexlvm/pvc-1", "flexlvm.size=", "volumes show pvc-1"},
		"degraded volume":     {volumes(inventory.Volume{State: volume.Ready, Degraded: true, Problem: "degraded: a copy is lacking"}), Warn, "volume flexlvm/pvc-1", "a copy is lacking", "volumes show pvc-1"},
		"inactive volume":     {volumes(inventory.Volume{State: volume.Ready, Problem: "inactive"}), Warn, "volume flexlvm/pvc-1", "inactive", "volumes show pvc-1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			c.hurt(t, p)
			var found []Finding
			for _, f := range p.examine() {
				if f.Level != OK && f.Check == c.check {
					found = append(found, f)
				}
			}
			require.Len(t, found, 1)
			require.Equal(t, c.level, found[0].Level)
			require.Contains(t, found[0].Detail, c.says)
			require.Contains(t, found[0].Do, c.do)
			require.NotContains(t, found[0].Do, "lvremove", "no advice removes what may hold data")
		})
	}
}

func TestSettings(t *testing.T) {
	snapshots := func(d *Doctor) []Finding { return d.checkSnapshots(t.Context()) }
	scan := func(d *Doctor) []Finding { return d.checkScan(t.Context()) }
	for name, tt := range map[string]struct {
		check func(*Doctor) []Finding
		said  string
		want  Finding
	}{
		"snapshots stay":      {snapshots, "snapshot_autoextend_threshold=100\n", Finding{Level: OK, Detail: "keep the size"}},
		"snapshots grow":      {snapshots, "snapshot_autoextend_threshold=70\n", Finding{Level: Warn, Detail: "from 70 % on"}},
		"snapshots, no value": {snapshots, "", Finding{Level: Warn, Detail: `reads ""`}},
		"snapshots, a word":   {snapshots, "snapshot_autoextend_threshold=none\n", Finding{Level: Warn, Detail: `is "none"`}},
		"snapshots, an error": {snapshots, "fails", Finding{Level: Warn, Detail: "went wrong"}},
		"scans nothing":       {scan, "scan_lvs=0\n", Finding{Level: OK, Detail: "does not look"}},
		"scans":               {scan, "scan_lvs=1\n", Finding{Level: Warn, Detail: "also on raw block volumes", Do: "set scan_lvs = 0 in lvm.conf"}},
		"scan, no value":      {scan, "", Finding{Level: Warn, Detail: `reads ""`}},
		"scan, an error":      {scan, "fails", Finding{Level: Warn, Detail: "went wrong", Do: "use LVM 2.02.184 or later"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			p.host.Tools = script{"lvmconfig": tt.said}
			got := tt.check(New(p.cfg, p.host))
			require.Len(t, got, 1)
			require.Equal(t, tt.want.Level, got[0].Level)
			require.Contains(t, got[0].Detail, tt.want.Detail)
			require.Contains(t, got[0].Do, tt.want.Do)
		})
	}
}

func TestWorst(t *testing.T) {
	require.Equal(t, OK, Worst(nil))
	require.Equal(t, Warn, Worst([]Finding{{Level: OK}, {Level: Warn}, {Level: OK}}))
	require.Equal(t, Fail, Worst([]Finding{{Level: Fail}, {Level: Warn}}))
}

func TestFindVersion(t *testing.T) {
	for text, want := range map[string]string{
		"LVM version:     2.03.16(2) (2022-05-18)":                          "2.03.16",
		"mkfs.xfs version 6.1.0":                                            "6.1.0",
		"mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library version 1.47.0": "1.47.0",
		"blkid from util-linux 2.38.1  (x)":                                 "2.38.1",
		"no version. 7 at all...":                                           "",
		"":                                                                  "",
	} {
		require.Equal(t, want, findVersion(text), text)
	}
	require.True(t, older("2.02.98", "2.02.158"))
	require.True(t, older("2.02", "2.02.158"))
	require.False(t, older("2.03", "2.02.158"))
	require.False(t, older("2.02.158", "2.02.158"))
	require.False(t, older("1.0", ""))
}
