package doctor

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/install"
)

// Where only the CSI driver is installed, a missing FlexVolume driver is no finding.
func TestNoDriverIsExpected(t *testing.T) {
	p := healthy(t)
	require.NoError(t, os.Remove(p.cfg.Place.Driver()))
	p.write(t, "proc/77/cmdline", "kubelet\x00--volume-plugin-dir\x00/opt/exec\x00")
	p.cfg.NoDriver = true
	findings := p.examine()
	require.Equal(t, OK, Worst(findings), "%+v", findings)
	require.Contains(t, findings, Finding{Level: OK, Check: "driver", Detail: "no FlexVolume driver is expected here"})
}

// The advice names the plugin directory if `flexlvm install` would use another one, and calls no program of the node
// where the node daemon runs the checks.
func TestAdviceToInstallTheDriver(t *testing.T) {
	p := healthy(t)
	require.NoError(t, os.Remove(p.cfg.Place.Driver()))
	do := func() string {
		for _, f := range p.examine() {
			if f.Check == "driver" {
				return f.Do
			}
		}
		return ""
	}
	require.Equal(t, "run `flexlvm install --plugin-dir "+p.cfg.Place.PluginDir()+"`", do())
	const again = "see the log of the node's pod of DaemonSet flexlvm-installer (no pod: its node selector or tolerations exclude the node); delete the pod to install its driver again"
	p.cfg.InDaemon = true
	require.Equal(t, again, do())

	p = healthy(t)
	p.cfg.InDaemon, p.cfg.Version = true, "v0.2.0"
	require.Equal(t, "wait if an upgrade is under way; otherwise "+again, do())

	place, err := install.At(install.DefaultPluginDir)
	require.NoError(t, err)
	require.Equal(t, "run `flexlvm install`", New(Config{Place: place}, Host{}).installAdvice())
}
