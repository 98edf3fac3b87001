package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTenantsDevices(t *testing.T) {
	dev, sys := t.TempDir(), t.TempDir()
	there := tenants{dev: dev, sys: sys, backing: func(loop string) (uint64, error) {
		switch filepath.Base(loop) {
		case "loop2":
			return 0, nil // the number of the plain files that stand for mappings
		case "loop4":
			return 0, fmt.Errorf("it is going: %w", unix.ENXIO)
		case "loop5":
			return 7, nil
		}
		return 0, errors.New("another")
	}}
	patterns := func() []string {
		t.Helper()
		all, err := there.patterns()
		require.NoError(t, err)
		return all
	}
	require.Empty(t, patterns(), "no device-mapper at all")
	require.NoError(t, os.Mkdir(filepath.Join(dev, "mapper"), 0o750))
	for _, name := range []string{"flexlvm-pvc--1", "flexlvm-crypt-a"} {
		require.NoError(t, os.WriteFile(filepath.Join(dev, "mapper", name), nil, 0o600))
	}
	for _, loop := range []string{"loop1", "loop2", "loop4", "loop5"} {
		require.NoError(t, os.MkdirAll(filepath.Join(sys, "block", loop, "loop"), 0o750))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(sys, "block", "loop3"), 0o750))
	require.Empty(t, patterns())
	for _, name := range []string{"flexlvm-block-a", "flexlvm-block-crypt-b"} {
		require.NoError(t, os.WriteFile(filepath.Join(dev, "mapper", name), nil, 0o600))
	}
	require.Equal(t, []string{
		"a|^" + dev + "/loop1$|", "a|^" + dev + "/loop1p|", "a|^" + dev + "/loop5$|", "a|^" + dev + "/loop5p|",
		"r|^" + dev + "/loop[0-9]|", "r|^" + dev + "/mapper/flexlvm-block-|",
	}, patterns())
	for device, seen := range map[string]bool{
		"sda": true, "nvme0n1p1": true, "dm-3": true, "mapper/flexlvm-pvc--1": true, "mapper/loops-data": true, "loopdata/lv": true,
		"loop1": true, "loop1p1": true, "loop5": true, "loop5p12": true, "loop50": false,
		"loop2": false, "loop2p1": false,
		"loop3": false, "loop4": false, "loop4p1": false, // may be made of a pod's device when LVM scans
		"loop9": false, "loop9p1": false, // created after the patterns
		"mapper/flexlvm-block-a": false, "mapper/flexlvm-block-crypt-b": false, "mapper/flexlvm-block-later": false,
	} {
		require.Equal(t, seen, accepts(patterns(), filepath.Join(dev, device)), device)
	}
}

// accepts reports whether LVM accepts a device with only this name: the first matching pattern decides,
// and a device that none matches is accepted.
func accepts(patterns []string, device string) bool {
	for _, p := range patterns {
		if regexp.MustCompile(strings.Trim(p[1:], "|")).MatchString(device) {
			return p[0] == 'a'
		}
	}
	return true
}

func TestHidden(t *testing.T) {
	const a = `devices{filter=["a|^/dev/loop1$|","r|^/dev/loop|"]}`
	patterns := []string{"a|^/dev/loop1$|", "r|^/dev/loop|"}
	for _, c := range []struct{ args, want []string }{
		{[]string{"--yes", "--", "g/v"}, []string{"--config", a, "--yes", "--", "g/v"}},
		{[]string{"fullreport", "--config", "x=1", "--select", "y"}, []string{"fullreport", "--config", "x=1 " + a, "--select", "y"}},
		{[]string{"--config", noArchive, "--deltag", "x"}, []string{"--config", "backup{archive=0} " + a, "--deltag", "x"}},
		{[]string{"fullreport", "--units", "b"}, []string{"fullreport", "--config", a, "--units", "b"}},
		{nil, []string{"--config", a}},
	} {
		before := slices.Clone(c.args)
		require.Equal(t, c.want, hidden(c.args, patterns, "filter"))
		require.Equal(t, before, c.args)
		require.Equal(t, before, hidden(c.args, patterns, ""))
	}
}

// Devices that the host's filter hides stay hidden. If that filter cannot be read, the command fails.
func TestHostFilterStays(t *testing.T) {
	const byDefault, byOldDefault, own = `=["a|.*|"]`, `=["a|.*/|"]`, `=["r|^/dev/sdb$|","a|.*|"]`
	c, s := client(t, map[string][]answer{
		"lvm": {
			{out: "filter" + byDefault + "\nglobal_filter" + byDefault + "\n"}, {out: "filter" + byDefault + "\nglobal_filter" + own + "\n"},
			{out: "filter" + own + "\nglobal_filter" + byDefault + "\n"},
			{out: "filter" + byOldDefault + "\nglobal_filter" + byOldDefault + "\n"}, {out: "filter" + own + "\nglobal_filter" + byOldDefault + "\n"},
			{out: "filter" + own + "\nglobal_filter" + own + "\n"}, {err: failed},
		},
		"lvchange": {{}, {}, {}, {}, {}, {}},
	})
	c.tenants = tenants{dev: t.TempDir(), sys: t.TempDir()}
	require.NoError(t, os.Mkdir(filepath.Join(c.tenants.dev, "mapper"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(c.tenants.dev, "mapper", "flexlvm-block-a"), nil, 0o600))
	_, err := c.lvm(t.Context(), "lvchange", "-ay")
	require.ErrorContains(t, err, "look for loop devices", "a group may be on one, and would be missing")
	require.NoError(t, os.Mkdir(filepath.Join(c.tenants.sys, "block"), 0o750))
	all, err := c.tenants.patterns()
	require.NoError(t, err)
	patterns := strings.Join(all, `","`)
	for _, filter := range []string{"filter", "filter", "global_filter", "filter", "global_filter", ""} {
		_, err := c.lvm(t.Context(), "lvchange", "-ay")
		require.NoError(t, err)
		want := `lvchange --config devices{` + filter + `=["` + patterns + `"]} -ay`
		if filter == "" {
			want = "lvchange -ay"
		}
		require.Equal(t, want, s.ran[len(s.ran)-1])
	}
	_, err = c.lvm(t.Context(), "lvchange", "-ay")
	require.ErrorContains(t, err, "read the host's LVM filter")
	require.Len(t, s.ran, 13)
}

// If the host's LVM scans logical volumes, raw block volumes are hidden by their names, and
// no others, because a group may be on one. If the host has set both filters, raw block
// volumes are not even listed.
func TestHostThatScansVolumes(t *testing.T) {
	const filters = "filter=[\"a|.*|\"]\nglobal_filter=[\"r|^/dev/sdb$|\"]\n"
	const bothSet = "filter=[\"r|^/dev/sdb$|\"]\nglobal_filter=[\"r|^/dev/sdb$|\"]\n"
	const raw = `{"report":[{"lv":[{"vg_name":"flexlvm","lv_name":"pvc-1"},{"vg_name":"a+b","lv_name":"doomed_pvc-2"}]}]}`
	c, s := client(t, map[string][]answer{
		"lvm": {{out: filters + "scan_lvs=0\n"}, {out: filters + "scan_lvs=1\n"}, {out: filters + "scan_lvs=1\n"}, {out: filters + "scan_lvs=1\n"}, {out: filters + "scan_lvs=1\n"}, {out: bothSet + "scan_lvs=1\n"}},
		"lvs": {{out: raw}, {out: raw}, {out: `{"report":[{"lv":[]}]}`}, {err: failed}},
		"vgs": make([]answer, 10),
	})
	c.tenants = tenants{dev: t.TempDir(), sys: t.TempDir(), conf: t.TempDir()}
	run := func(want ...string) {
		t.Helper()
		s.ran = nil
		_, err := c.lvm(t.Context(), "vgs")
		require.NoError(t, err)
		require.Equal(t, want, s.ran)
	}
	run("vgs")
	conf := filepath.Join(c.tenants.conf, "lvmlocal.conf")
	require.NoError(t, os.WriteFile(conf, []byte("devices {\n\t# scan_lvs = 1\n}\n"), 0o600))
	run("vgs")
	stock := filepath.Join(c.tenants.conf, "lvm.conf")
	for _, off := range []string{"devices { scan_lvs = 0 }", "devices {\n\tscan_lvs = 0\n}", "devices/scan_lvs=0 # the default"} {
		require.NoError(t, os.WriteFile(stock, []byte(off+"\n"), 0o600))
		run("vgs")
	}
	require.NoError(t, os.WriteFile(conf, []byte("devices { scan_lvs = 1 }\n"), 0o600))
	const ask = "lvm lvmconfig --typeconfig full devices/filter devices/global_filter devices/scan_lvs"
	run(ask, "vgs") // this file overrides the other one

	mapper := filepath.Join(c.tenants.dev, "mapper")
	list := func(and string) string {
		return "lvs --reportformat json --units b --nosuffix --config " + reportConfig + " devices{scan_lvs=0" + and + `} --options vg_name,lv_name --select lv_tags={"flexlvm.fstype=block"}`
	}
	hide := []string{"r|^" + mapper + "/flexlvm-pvc--1$|", "r|^" + mapper + "/a.b-doomed_pvc--2$|"}
	run(ask, list(""), `vgs --config devices{filter=["`+strings.Join(hide, `","`)+`"]}`)
	for device, seen := range map[string]bool{"flexlvm-pvc--1": false, "flexlvm-pvc--10": true, "a+b-doomed_pvc--2": false, "vg0-nested": true} {
		require.Equal(t, seen, accepts(hide, filepath.Join(mapper, device)), device)
	}

	require.NoError(t, os.Mkdir(mapper, 0o750))
	require.NoError(t, os.Mkdir(filepath.Join(c.tenants.sys, "block"), 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(mapper, "flexlvm-block-a"), nil, 0o600))
	mapped, err := c.tenants.patterns()
	require.NoError(t, err)
	filter := func(patterns []string) string { return `filter=["` + strings.Join(patterns, `","`) + `"]` }
	run(ask, list(" "+filter(mapped)), "vgs --config devices{"+filter(append(hide, mapped...))+"}")
	run(ask, list(" "+filter(mapped)), "vgs --config devices{"+filter(mapped)+"}")
	_, err = c.lvm(t.Context(), "vgs")
	require.ErrorContains(t, err, "list raw block volumes, at which LVM must not look")
	run(ask, "vgs")
}
