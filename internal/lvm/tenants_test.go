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
			return 0, nil // the number of a plain file
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
		"loop3": false, "loop4": false, "loop4p1": false, // made of a pod's device by the time that LVM looks
		"loop9": false, "loop9p1": false, // was not there yet
		"mapper/flexlvm-block-a": false, "mapper/flexlvm-block-crypt-b": false, "mapper/flexlvm-block-later": false,
	} {
		require.Equal(t, seen, accepts(patterns(), filepath.Join(dev, device)), device)
	}
}

// accepts is what LVM does with a device of this one name: the first pattern that matches decides, and
// what none matches passes.
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
		{[]string{"fullreport", "--units", "b"}, []string{"fullreport", "--config", a, "--units", "b"}},
		{nil, []string{"--config", a}},
	} {
		before := slices.Clone(c.args)
		require.Equal(t, c.want, hidden(c.args, patterns, "filter"))
		require.Equal(t, before, c.args)
		require.Equal(t, before, hidden(c.args, patterns, ""))
	}
}

// What the host's filter hides stays hidden, and a filter that cannot be read is no reason to go on
// without.
func TestHostFilterStays(t *testing.T) {
	const byDefault, own = `=["a|.*|"]`, `=["r|^/dev/sdb$|","a|.*|"]`
	c, s := client(t, map[string][]answer{
		"lvm": {
			{out: "filter" + byDefault + "\nglobal_filter" + byDefault + "\n"}, {out: "filter" + byDefault + "\nglobal_filter" + own + "\n"},
			{out: "filter" + own + "\nglobal_filter" + byDefault + "\n"}, {out: "filter" + own + "\nglobal_filter" + own + "\n"}, {err: failed},
		},
		"lvchange": {{}, {}, {}, {}},
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
	for _, filter := range []string{"filter", "filter", "global_filter", ""} {
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
	require.Len(t, s.ran, 9)
}
