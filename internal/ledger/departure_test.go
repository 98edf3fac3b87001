package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// madeAt returns a report of node-1 that was made at a minute of the node's clock.
func madeAt(minute int, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
	out := ledgertest.Report("node-1", allocatable)
	out.Status.ObservedTime = metav1.NewTime(time.Unix(1e9, 0).Add(time.Duration(minute) * time.Minute))
	return out
}

// failedAt returns a report of a round that has failed.
func failedAt(minute int, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
	out := madeAt(minute, allocatable)
	out.Status.Conditions = []metav1.Condition{{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: flexlvmv1.ReasonAPIUnavailable, Message: "no answer"}}
	return out
}

// lackingToolsAt returns a report of a node whose host lacks programs, whether or not its round has failed.
func lackingToolsAt(minute int, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
	out := failedAt(minute, allocatable)
	out.Status.Conditions[0].Reason, out.Status.Conditions[0].Message = flexlvmv1.ReasonToolsMissing, "the host lacks mkfs.xfs"
	return out
}

// Somebody has removed the finalizer of a PersistentVolume whose volume its node has not released. The node's report
// still counts the volume as allocatable, and offers its room only once it must have seen that the PersistentVolume is
// gone.
func TestUnreleasedStaysChargedUntilItsNodeHasReportedTwice(t *testing.T) {
	gib := ledgertest.OneGiB
	for name, tt := range map[string]struct {
		phase  corev1.PersistentVolumePhase
		silent time.Duration
	}{
		"bound":                        {phase: corev1.VolumeBound},
		"released, of a silent daemon": {phase: corev1.VolumeReleased, silent: 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			b := ledgertest.New(t, madeAt(0, 3*gib))
			b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), func(o *corev1.PersistentVolume) { o.Status.Phase = tt.phase }))
			b.Now = b.Now.Add(tt.silent)
			b.Gone("a")
			_, at, ask := b.Unconfirmed("node-1")
			require.True(t, ask)
			b.Confirm(madeAt(0, 3*gib), at)
			require.Equal(t, 2*gib, b.Room("node-1"))
			_, _, ask = b.Unconfirmed("node-1")
			require.False(t, ask, "the watch shows the next reports")
			b.Report(madeAt(0, 3*gib))
			require.Equal(t, 2*gib, b.Room("node-1"))
			b.Report(madeAt(1, 3*gib))
			require.Equal(t, 2*gib, b.Room("node-1"), "its observation may have begun before")
			b.Report(failedAt(2, 3*gib))
			require.Equal(t, 2*gib, b.Room("node-1"), "it has observed nothing")
			b.Changes()
			b.Report(madeAt(3, 2*gib))
			require.Equal(t, 2*gib, b.Room("node-1"), "the volume is an orphan")
			require.Equal(t, []string{"node-1"}, b.Changes())
			b.Report(madeAt(4, 3*gib))
			require.Equal(t, 3*gib, b.Room("node-1"), "it has been removed")
		})
	}
}

// The finalizer of a PersistentVolume is removed by hand, and then its Node is deleted with its NodeStorage. No report will
// follow, so nothing waits for one: a new node of that name gets a replica of the same dataset.
func TestUnreleasedEndsWithItsNode(t *testing.T) {
	gib := ledgertest.OneGiB
	for name, end := range map[string]func(*ledgertest.Books, *flexlvmv1.NodeStorage){
		"absent": func(b *ledgertest.Books, was *flexlvmv1.NodeStorage) {
			b.Forget(was)
			_, at, ask := b.Unconfirmed("node-1")
			require.True(t, ask)
			require.True(t, b.Absent("node-1", at))
		},
		"deleted while the API server answers": func(b *ledgertest.Books, was *flexlvmv1.NodeStorage) {
			b.Gone("other")
			_, at, ask := b.Unconfirmed("node-1")
			require.True(t, ask)
			b.Forget(was)
			b.Confirm(was, at)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := ledgertest.New(t, madeAt(0, 3*gib))
			first, second, other := ledgertest.Want("pvc-1", volume.GiB), ledgertest.Want("pvc-2", volume.GiB), ledgertest.Want("other", volume.GiB)
			first.Spec.Kind, first.Spec.Name = volume.Dataset, "ds-1"
			second.Spec.Kind, second.Spec.Name = volume.Dataset, "ds-1"
			b.Written(bound(first, 1))
			b.Written(bound(other, 2))
			b.Left(madeAt(0, 3*gib), "pvc-1")
			require.ErrorContains(t, b.Take("node-1", second), "has a replica of this dataset already")
			end(b, madeAt(0, 3*gib))
			again := madeAt(5, 3*gib)
			again.UID = "made again"
			b.Report(again)
			require.NoError(t, b.Take("node-1", second))
		})
	}
}

// A NodeStorage is deleted and made again by the same daemon before anybody has noticed that it is absent: a departure
// that waits for reports waits for those of the new one.
func TestUnreleasedWaitsForTheReportsOfANewNodeStorage(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, madeAt(0, 3*gib))
	b.Written(bound(ledgertest.Want("a", volume.GiB), 1))
	b.Left(madeAt(0, 3*gib), "a")
	b.Forget(madeAt(0, 3*gib))
	again := func(minute int) *flexlvmv1.NodeStorage {
		out := madeAt(minute, 3*gib)
		out.UID = "made again"
		return out
	}
	_, at, ask := b.Unconfirmed("node-1")
	require.True(t, ask)
	b.Confirm(again(1), at)
	require.Equal(t, 2*gib, b.Room("node-1"))
	b.Report(again(2))
	require.Equal(t, 2*gib, b.Room("node-1"))
	b.Report(again(3))
	require.Equal(t, 3*gib, b.Room("node-1"))
}

// A PersistentVolume that was released by its node is charged only until the report is confirmed, also if the node has
// reported long ago, but within the time in which it must report.
func TestReleasedIsNotChargedForLonger(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, madeAt(0, 3*gib))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased }))
	b.Now = b.Now.Add(10 * time.Minute)
	b.Left(madeAt(0, 3*gib), "a")
	require.Equal(t, 3*gib, b.Room("node-1"))
}

// A node whose host lacks programs for long reports nevertheless. What it has released is not charged for longer.
func TestNodeWithoutToolsIsNotSilent(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, lackingToolsAt(0, 3*gib))
	b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("a", volume.GiB), func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeReleased }))
	for minute := 5; minute <= 30; minute += 5 {
		b.Now = b.Now.Add(5 * time.Minute)
		b.Report(lackingToolsAt(minute, 3*gib))
	}
	b.Left(lackingToolsAt(30, 3*gib), "a")
	b.Report(madeAt(31, 3*gib))
	require.Equal(t, 3*gib, b.Room("node-1"))
}

// A round may fail because the host lacks programs. Such reports do not show that the node has seen the end of a
// PersistentVolume that it has not released.
func TestReportsWithoutToolsEndNoCharge(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, madeAt(0, 3*gib))
	b.Written(bound(ledgertest.Want("a", volume.GiB), 1))
	b.Left(madeAt(0, 3*gib), "a")
	for minute := 1; minute <= 3; minute++ {
		b.Report(lackingToolsAt(minute, 3*gib))
	}
	b.Report(failedAt(4, 3*gib))
	require.Equal(t, 2*gib, b.Room("node-1"), "its pools are as they were before")
	b.Report(madeAt(5, 3*gib))
	b.Report(madeAt(6, 3*gib))
	require.Equal(t, 3*gib, b.Room("node-1"))
}

// A PersistentVolume is deleted and made again with the same name, as by a move to the other driver: the volume is
// charged once. Meanwhile no promise counts as too much.
func TestMadeAgainIsChargedOnce(t *testing.T) {
	gib := ledgertest.OneGiB
	for name, confirmed := range map[string]bool{"before the report is confirmed": false, "after that": true} {
		t.Run(name, func(t *testing.T) {
			b := ledgertest.New(t, madeAt(0, 2*gib))
			confirm := func() {
				_, at, ask := b.Unconfirmed("node-1")
				require.True(t, ask)
				b.Confirm(madeAt(0, 2*gib), at)
			}
			other := bound(ledgertest.Want("b", volume.GiB), 1)
			b.Written(other)
			b.Written(bound(ledgertest.Want("a", volume.GiB), 2))
			b.Gone("a")
			if confirmed {
				confirm()
			}
			require.Zero(t, b.Room("node-1"))
			b.Written(bound(ledgertest.Want("a", volume.GiB), 4))
			require.True(t, b.Holds(other))
			if !confirmed {
				confirm()
			}
			require.Zero(t, b.Room("node-1"))
			b.Report(madeAt(0, 3*gib))
			require.Equal(t, gib, b.Room("node-1"))
		})
	}
}
