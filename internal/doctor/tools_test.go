package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Any version of these programs is sufficient, even one that they do not report.
func TestToolsWithoutALeastVersion(t *testing.T) {
	for _, name := range []string{"wipefs", "blkid"} {
		p := healthy(t)
		tools := goodTools()
		tools[name+" --version"] = "wipefs (BusyBox)\n"
		p.host.Tools = tools
		require.Contains(t, p.examine(), Finding{Level: OK, Check: name, Detail: "is there"})
	}
}
