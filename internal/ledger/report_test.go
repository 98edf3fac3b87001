package ledger_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// reportAt returns a report of node-1 at a resourceVersion.
func reportAt(version string, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
	out := ledgertest.Report("node-1", allocatable)
	out.ResourceVersion = version
	return out
}

// The watch of the reports may lag behind that of the PersistentVolumes: the report then still counts the room of a
// deleted PersistentVolume, whose volume still holds it.
func TestDepartedStaysChargedUntilTheReportIsNewer(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, reportAt("5", 3*gib))
	for _, name := range []string{"a", "b", "c"} {
		b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want(name, volume.GiB)))
	}
	require.Zero(t, b.Room("node-1"))
	_, _, ask := b.Unconfirmed("node-1")
	require.False(t, ask, "nothing has departed")

	b.Gone("a")
	b.Gone("a")
	b.Gone("b")
	require.Zero(t, b.Room("node-1"))
	require.Error(t, b.Take("node-1", ledgertest.Want("d", volume.GiB)))
	b.Report(reportAt("5", 3*gib)) // again
	require.Zero(t, b.Room("node-1"), "the watch alone does not tell how new it is")

	node, at, ask := b.Unconfirmed("node-1")
	require.True(t, ask)
	require.Equal(t, "node-1", node)
	b.Gone("c") // while the API server answers
	b.Confirm(reportAt("8", gib), at)
	require.Zero(t, b.Room("node-1"), "the answer may be older than the end of c")
	b.Report(reportAt("6", 3*gib))
	require.Zero(t, b.Room("node-1"), "the watch is behind the answer")

	_, at, ask = b.Unconfirmed("node-1")
	require.True(t, ask)
	b.Confirm(reportAt("9", gib), at)
	require.Equal(t, gib, b.Room("node-1"))
	require.NoError(t, b.Take("node-1", ledgertest.Want("d", volume.GiB)))
	_, _, ask = b.Unconfirmed("node-1")
	require.False(t, ask)

	b.Report(reportAt("10", 2*gib))
	require.Equal(t, gib, b.Room("node-1"), "the watch has caught up")
}

// A replica's volume exists until its node reports otherwise, and another replica with that name must not be created
// before.
func TestADepartedReplicaHasATwin(t *testing.T) {
	b := ledgertest.New(t, reportAt("5", 3*ledgertest.OneGiB))
	first, second := ledgertest.Want("pvc-1", volume.GiB), ledgertest.Want("pvc-2", volume.GiB)
	first.Spec.Kind, first.Spec.Name = volume.Dataset, "ds-1"
	second.Spec.Kind, second.Spec.Name = volume.Dataset, "ds-1"
	require.NoError(t, b.Take("node-1", first))
	b.Gone("pvc-1")
	require.ErrorContains(t, b.Take("node-1", second), "has a replica of this dataset already")
	b.Left(reportAt("6", 3*ledgertest.OneGiB))
	require.NoError(t, b.Take("node-1", second))
}

// A restored API server continues from an earlier version.
func TestReportsGoOnAfterARestore(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t)
	b.Confirm(reportAt("100", 3*gib), 0)
	b.Report(reportAt("50", 2*gib))
	require.Equal(t, 3*gib, b.Room("node-1"))
	_, at, ask := b.Unconfirmed("node-1")
	require.True(t, ask, "the API server itself knows which of them counts")
	b.Confirm(reportAt("51", 2*gib), at)
	require.Equal(t, 2*gib, b.Room("node-1"))
	b.Report(reportAt("52", gib))
	require.Equal(t, gib, b.Room("node-1"))
}

// Without a report, nothing is offered, and nothing has to stay charged.
func TestDepartedOfANodeThatIsGone(t *testing.T) {
	for _, name := range []string{"node-1", ledgertest.LongName} {
		label := pv.NodeLabelValue(name)
		b := ledgertest.New(t, ledgertest.Report(name, 3*ledgertest.OneGiB))
		b.Written(ledgertest.PersistentVolume(name, ledgertest.Want("a", volume.GiB)))
		b.Gone("a")
		_, at, _ := b.Unconfirmed(label)
		require.False(t, b.Absent(label, at), "the watch shows one that may be older")
		require.Equal(t, 2*ledgertest.OneGiB, b.Room(name))
		b.Forget(ledgertest.Report(name, 0))
		node, at, ask := b.Unconfirmed(label)
		require.True(t, ask)
		require.Equal(t, name, node)
		require.True(t, b.Absent(label, at))
		_, _, ask = b.Unconfirmed(label)
		require.False(t, ask)
	}
}

// The name of a node that has never reported is unknown if a label cannot hold it.
func TestDepartedOfANodeWithoutAName(t *testing.T) {
	b := ledgertest.New(t)
	b.Written(ledgertest.PersistentVolume(ledgertest.LongName, ledgertest.Want("a", volume.GiB)))
	b.Gone("a")
	label := pv.NodeLabelValue(ledgertest.LongName)
	_, _, ask := b.Unconfirmed(label)
	require.False(t, ask)
	b.Report(ledgertest.Report(ledgertest.LongName, ledgertest.OneGiB))
	require.Zero(t, b.Room(ledgertest.LongName))
	require.Equal(t, []string{label}, b.Changes()[:1])
	_, _, ask = b.Unconfirmed(label)
	require.True(t, ask)
}

// An answer that was on its way when the report was deleted does not restore it; a report with another UID is
// accepted.
func TestReportThatIsDeletedStaysSo(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t)
	report := func(uid types.UID) *flexlvmv1.NodeStorage {
		out := reportAt("5", 3*gib)
		out.UID = uid
		return out
	}
	b.Report(report("first"))
	b.Forget(report("first"))
	b.Confirm(report("first"), 0)
	b.Report(report("first"))
	_, _, reported := b.NodeOf("node-1")
	require.False(t, reported)
	b.Report(report("second"))
	require.Equal(t, 3*gib, b.Room("node-1"))
}

// A report is deleted and made again, and the new one is read from the API server before the watch shows the end of the
// old one.
func TestReportThatIsMadeAgainStays(t *testing.T) {
	gib := ledgertest.OneGiB
	report := func(uid types.UID, version string, allocatable volume.Bytes) *flexlvmv1.NodeStorage {
		out := reportAt(version, allocatable)
		out.UID = uid
		return out
	}
	b := ledgertest.New(t, report("first", "5", gib))
	b.Confirm(report("second", "7", 2*gib), 0)
	b.Forget(report("first", "5", gib))
	require.Equal(t, 2*gib, b.Room("node-1"))
	b.Report(report("second", "8", 3*gib))
	require.Equal(t, 3*gib, b.Room("node-1"))
	b.Report(report("first", "9", gib))
	require.Equal(t, 3*gib, b.Room("node-1"))
}
