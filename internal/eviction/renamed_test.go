package eviction_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
)

// The volumes of a renamed group are intact, so the name is the problem, even if somebody has created another group of
// the former name. A PersistentVolume that is given up is not released: its volume would become an orphan.
func TestRenamedGroup(t *testing.T) {
	s := evictiontest.New()
	s.PersistentVolume("given-up", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.GroupWas("former"))
	s.PersistentVolume("in-use", 10, evictiontest.GroupWas("former"))
	s.PersistentVolume("kept", 10, evictiontest.Phase(corev1.VolumeReleased), evictiontest.Retain, evictiontest.GroupWas("former"))
	s.PersistentVolume("wanted-back", 90, wantsBack, evictiontest.GroupWas("former"))
	const advice = "volume group " + evictiontest.GroupUUID + " is on this node under the name flexlvm, with its volumes; give it its name back: `vgrename " + evictiontest.GroupUUID + " former` (if"
	for range 2 {
		verdicts := eviction.Judge(s.View)
		require.Len(t, verdicts, 4)
		for i, says := range []string{"but its volume stays as it is: ", "PersistentVolume in-use needs volume group former, which was renamed: ", "PersistentVolume kept needs volume group former, which was renamed: ", "which was renamed: "} {
			require.Equal(t, eviction.ActionReport, verdicts[i].Action)
			require.Contains(t, verdicts[i].Why, says+advice)
			require.NotContains(t, verdicts[i].Why, "lost")
		}
		undelete := eviction.Undeletes(s.View)[0]
		require.False(t, undelete.Evicted)
		require.Contains(t, undelete.Why, advice)
		s.Pool("former", 10)
		s.PoolNamed("former").UUID = "another"
	}
}
