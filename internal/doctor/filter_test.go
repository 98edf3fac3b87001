package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// flexlvm needs one of LVM's two filters for itself, so the host must not have set both.
func TestFilters(t *testing.T) {
	const old, own, hides = `=["a|.*/|"]`, `=["r|^/dev/sdb$|","a|.*|"]`, `=["r|^/dev/mapper/flexlvm-block-|"]`
	for name, tt := range map[string]struct {
		filter, global string
		devicesFile    bool
		want           Finding
	}{
		"one is set":                {"filter" + own, "global_filter" + old, false, Finding{Level: OK, Detail: "can hide"}},
		"both are set":              {"filter" + own, "global_filter" + own, false, Finding{Level: Warn, Detail: "cannot hide", Do: "flexlvm-block-"}},
		"both are set and hide":     {"filter" + own, "global_filter" + hides, false, Finding{Level: OK, Detail: "name the devices"}},
		"both are set and not used": {"filter" + own, "global_filter" + own, true, Finding{Level: OK, Detail: "devices file"}},
		"no value":                  {"", "global_filter" + own, false, Finding{Level: Warn, Detail: `reads ""`}},
		"an error":                  {"filter" + own, "fails", false, Finding{Level: Warn, Detail: "went wrong"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := healthy(t)
			p.host.Tools = script{
				"lvmconfig --type full devices/filter": tt.filter, "lvmconfig --type full devices/global_filter": tt.global,
				"lvmconfig --type full devices/use_devicesfile": "use_devicesfile=1\n",
			}
			if tt.devicesFile {
				p.write(t, devicesFileName, "")
			}
			got := New(p.cfg, p.host).checkFilters(t.Context())
			require.Len(t, got, 1)
			require.Equal(t, tt.want.Level, got[0].Level)
			require.Contains(t, got[0].Detail, tt.want.Detail)
			require.Contains(t, got[0].Do, tt.want.Do)
		})
	}
}
