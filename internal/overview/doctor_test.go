package overview_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

func examined(found ...flexlvmv1.Check) func(*flexlvmv1.NodeStorageStatus) {
	return func(s *flexlvmv1.NodeStorageStatus) {
		s.CheckedTime, s.CheckCount, s.Checks = metav1.NewTime(now.Add(-time.Minute)), 17, found
	}
}

func TestExaminations(t *testing.T) {
	all := overview.ExaminationsOf([]flexlvmv1.NodeStorage{
		node("a-sound", examined()),
		node("b-warns", examined(flexlvmv1.Check{Level: "WARN", Check: "driver", Detail: "is older"})),
		node("c-fails", examined(flexlvmv1.Check{Level: "WARN", Check: "xfs", Detail: "is old"}, flexlvmv1.Check{Level: "FAIL", Check: "driver", Detail: "is not there", Do: "install it"})),
		node("d-silent", examined(), func(s *flexlvmv1.NodeStorageStatus) { s.ObservedTime = metav1.NewTime(now.Add(-time.Hour)) }),
		node("e-new"),
		node("f-closed", examined(), func(s *flexlvmv1.NodeStorageStatus) { s.Pools[0].MissingDevices = 1 }),
	}, now)
	var names []string
	for i := range all {
		names = append(names, all[i].Node+" "+all[i].Worst())
	}
	require.Equal(t, []string{"c-fails FAIL", "d-silent FAIL", "f-closed FAIL", "b-warns WARN", "e-new WARN", "a-sound "}, names)
	require.Equal(t, "driver", all[0].Found[0].Check)
	require.Contains(t, all[1].Found[0].Detail, "has not reported since")
	require.Equal(t, "pool flexlvm", all[2].Found[0].Check)
	require.Contains(t, all[4].Found[0].Detail, "has not run its checks yet")
	require.NotNil(t, all[5].Found)
	require.Equal(t, "6 nodes: 3 with FAIL, 2 with WARN, 1 OK", overview.Examined(all))
}
