package nodeagent_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A volume of an exported group cannot be healed: no attempt is made, and the report shows the problem immediately.
func TestNothingIsHealedInAnExportedGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 5)
	r.engine.with(func() {
		r.engine.pools[0].Exported = true
		for i := range r.engine.volumes {
			r.engine.volumes[i].Active, r.engine.volumes[i].Problem = false, "its volume group is exported"
		}
	})
	r.start()
	r.eventually(func() bool { return len(r.status().Orphans) > 0 }, "it is not reported")
	require.Empty(t, r.engine.called("heal"))
	require.Equal(t, "its volume group is exported", r.status().Orphans[0].Problem)
	require.Contains(t, r.status().Pools[0].Closed, "`vgimport flexlvm`")
}
