package lvm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTenantsDevices(t *testing.T) {
	dev, sys := t.TempDir(), t.TempDir()
	there := tenants{dev: dev, sys: sys, backing: func(loop string) (uint64, error) {
		if filepath.Base(loop) == "loop2" {
			return 0, nil // the number of a plain file
		}
		return 1, errors.New("another")
	}}
	require.Empty(t, there.devices(), "no device-mapper at all")
	require.NoError(t, os.Mkdir(filepath.Join(dev, "mapper"), 0o750))
	for _, name := range []string{"flexlvm-pvc--1", "flexlvm-crypt-a"} {
		require.NoError(t, os.WriteFile(filepath.Join(dev, "mapper", name), nil, 0o600))
	}
	for _, loop := range []string{"loop1", "loop2"} {
		require.NoError(t, os.MkdirAll(filepath.Join(sys, "block", loop, "loop"), 0o750))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(sys, "block", "loop3"), 0o750))
	require.Empty(t, there.devices())
	raw := filepath.Join(dev, "mapper", "flexlvm-block-a")
	require.NoError(t, os.WriteFile(raw, nil, 0o600))
	require.Equal(t, []string{raw, filepath.Join(dev, "loop2")}, there.devices())
}

func TestHidden(t *testing.T) {
	const a = `devices{filter=["r|^/dev/mapper/flexlvm-block-a$|","r|^/dev/loop2$|"]}`
	devices := []string{"/dev/mapper/flexlvm-block-a", "/dev/loop2"}
	for _, c := range []struct{ args, want []string }{
		{[]string{"--yes", "--", "g/v"}, []string{"--config", a, "--yes", "--", "g/v"}},
		{[]string{"fullreport", "--config", "x=1", "--select", "y"}, []string{"fullreport", "--config", "x=1 " + a, "--select", "y"}},
		{[]string{"fullreport", "--units", "b"}, []string{"fullreport", "--config", a, "--units", "b"}},
		{nil, []string{"--config", a}},
	} {
		before := slices.Clone(c.args)
		require.Equal(t, c.want, hidden(c.args, devices, "filter"))
		require.Equal(t, before, c.args)
		require.Equal(t, before, hidden(c.args, devices, ""))
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
	raw := filepath.Join(c.tenants.dev, "mapper", "flexlvm-block-a")
	require.NoError(t, os.WriteFile(raw, nil, 0o600))
	for _, filter := range []string{"filter", "filter", "global_filter", ""} {
		_, err := c.lvm(t.Context(), "lvchange", "-ay")
		require.NoError(t, err)
		want := `lvchange --config devices{` + filter + `=["r|^` + raw + `$|"]} -ay`
		if filter == "" {
			want = "lvchange -ay"
		}
		require.Equal(t, want, s.ran[len(s.ran)-1])
	}
	_, err := c.lvm(t.Context(), "lvchange", "-ay")
	require.ErrorContains(t, err, "read the host's LVM filter")
	require.Len(t, s.ran, 9)
}
