package lvm

import (
	"errors"
	"os"
	"path/filepath"
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
		require.Equal(t, c.want, hidden(c.args, devices))
		require.Equal(t, c.args, hidden(c.args, nil))
	}
}
