package nodeagent

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The report says that claims wait because removals fail, even if another pool is full of volumes in use. That is no
// shortfall, because nothing is promised to them.
func TestConditionOfAStalledPool(t *testing.T) {
	s := evictiontest.New()
	s.Volume("doomed_x", volume.Doomed, 5, evictiontest.WithProblem)
	s.Volume("old", volume.Unreferenced, 10)
	shortfall := func() *metav1.Condition {
		return meta.FindStatusCondition(reported(s).Status.Conditions, flexlvmv1.ConditionShortfall)
	}
	require.Equal(t, "NoShortfall", shortfall().Reason)

	s.Volume("doomed_y", volume.Doomed, 5, evictiontest.WithProblem)
	s.Pool("slow", 100)
	s.Volume("used", volume.Retained, 95, evictiontest.InGroup("slow"))
	is := shortfall()
	require.Equal(t, metav1.ConditionFalse, is.Status)
	require.Equal(t, flexlvmv1.ReasonRemovalsFail, is.Reason)
	require.Contains(t, is.Message, "10 GiB in 1 volume could be evicted from pool flexlvm, but claims are not offered that room; 2 volumes that were given up could not be removed")
	require.Contains(t, is.Message, "pool slow is 95% full")

	s.PersistentVolume("promised", 100)
	require.Equal(t, flexlvmv1.ReasonRoomMissing, shortfall().Reason)
}

// A node without a volume group needs no shell: its condition names VolumeGroups before the command.
func TestNoPoolsNamesVolumeGroups(t *testing.T) {
	ready, reason, message := readiness(observation{}, report{})
	require.True(t, ready)
	require.Equal(t, "NoPools", reason)
	require.Regexp(t, "VolumeGroup .*docs/volume-groups.md.*flexlvm vg create", message)
}
