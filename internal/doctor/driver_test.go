package doctor

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
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
