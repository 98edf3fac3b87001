package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A claim that two pods use is being written for one of them. The other pod's claims must not take its room.
func TestOtherClaimThatIsBeingWrittenKeepsItsRoom(t *testing.T) {
	three, five := volume.XFSDeviceSize(3*volume.GiB, 0), volume.XFSDeviceSize(5*volume.GiB, 0)
	b := ledgertest.New(t, ledgertest.Report("node-1", three+five+2*volume.GiB), ledgertest.Report("node-2", 3*five))
	shared, first, second := ledgertest.Want("shared", 3*volume.GiB), ledgertest.Want("first", 5*volume.GiB), ledgertest.Want("second", 5*volume.GiB)
	require.NoError(t, b.Take("node-1", shared, first))
	require.NoError(t, b.Take("node-1", first, shared))
	b.Written(ledgertest.PersistentVolume("node-1", first))
	require.Equal(t, 2*volume.GiB, b.Room("node-1"), "it is charged once")

	require.ErrorContains(t, b.Take("node-1", second, shared), "has no room for it: ", "what is settled needs none")
	require.Equal(t, 2*volume.GiB, b.Room("node-1"))
	b.Changes()
	require.EqualError(t, b.Take("node-2", second, shared),
		`node "node-2" cannot have it: claim "claim-shared", which its pod uses too, gets its volume on node "node-1"; the scheduler is asked for another node`)
	require.Empty(t, b.Changes())
	require.NoError(t, b.Take("node-2", shared, second), "in its own turn it may move")
	require.Equal(t, 2*volume.GiB, b.Room("node-1"), "its first write may still be under way")
	require.Equal(t, 2*five-three, b.Room("node-2"))

	b.Written(ledgertest.PersistentVolume("node-2", shared))
	require.ErrorContains(t, b.Take("node-1", second, shared), `gets its volume on node "node-2"`, "nor once it is written")
}

// Two claims whose writes have failed for one node can both move to another one.
func TestClaimsOfAPodMoveTogether(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB), ledgertest.Report("node-2", 2*ledgertest.OneGiB))
	one, two := ledgertest.Want("one", volume.GiB), ledgertest.Want("two", volume.GiB)
	require.NoError(t, b.Take("node-1", one, two))
	require.NoError(t, b.Take("node-1", two, one))
	require.Error(t, b.Take("node-2", one, two))
	require.NoError(t, b.Take("node-2", two, one))
	require.NoError(t, b.Take("node-2", one, two))
	require.Zero(t, b.Room("node-1"), "the first writes may still be under way")
	require.Zero(t, b.Room("node-2"))
	b.Now = b.Now.Add(ledger.ReservationTime)
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"))
}

func TestReservationForAWriteLastsThroughAnotherClaimsTurn(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 4*ledgertest.OneGiB))
	one, two := ledgertest.Want("one", volume.GiB), ledgertest.Want("two", volume.GiB)
	require.NoError(t, b.Take("node-1", one, two))
	b.Now = b.Now.Add(2 * time.Minute)
	require.NoError(t, b.Take("node-1", two, one))
	b.Now = b.Now.Add(2 * time.Minute)
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"))
	b.Now = b.Now.Add(ledger.ReservationTime - 4*time.Minute)
	require.Equal(t, 3*ledgertest.OneGiB, b.Room("node-1"), "nor longer than its own turn said")
	require.NoError(t, b.Take("node-1", two, one))
	require.Equal(t, 2*ledgertest.OneGiB, b.Room("node-1"), "what has lapsed is reserved as for any other claim")
	b.Now = b.Now.Add(2 * time.Minute)
	require.Equal(t, 3*ledgertest.OneGiB, b.Room("node-1"))
}

// A PersistentVolume that the watch does not show yet exists, and no other claim's turn takes its room.
func TestOtherClaimThatIsInheritedKeepsItsRoom(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", ledgertest.OneGiB))
	one, two := ledgertest.Want("one", volume.GiB), ledgertest.Want("two", volume.GiB)
	b.Inherited(ledgertest.PersistentVolume("node-1", one))
	require.Error(t, b.Take("node-1", two, one))
	require.Zero(t, b.Room("node-1"))
}

// All snapshots of a group are about to be written, so none of their reservations is short.
func TestSnapshotsOfAGroupKeepTheirRoom(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 4*ledgertest.OneGiB))
	wants := []ledger.Want{snapshot("one"), snapshot("two"), snapshot("three")}
	require.NoError(t, b.Take("node-1", wants...))
	left := b.Room("node-1")
	require.Less(t, left, 2*ledgertest.OneGiB)
	b.Now = b.Now.Add(2 * time.Minute)
	require.Equal(t, left, b.Room("node-1"))
	b.Now = b.Now.Add(7 * time.Minute)
	require.NoError(t, b.Take("node-1", wants...), "the call is repeated")
	b.Now = b.Now.Add(7 * time.Minute)
	require.Equal(t, left, b.Room("node-1"))
}

// Snapshots that do not fit leave no hold that would keep claims away.
func TestSnapshotsThatDoNotFitHoldNothing(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*ledgertest.OneGiB))
	before, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.ErrorContains(t, b.Take("node-1", snapshot("one"), snapshot("two"), snapshot("three")), "has no room for 3 snapshots together")
	after, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Equal(t, before, after)
	require.Empty(t, b.Changes())
}

// Nor do copies, which can be on no other node, whichever of their pod's claims has its turn.
func TestCopiesThatDoNotFitHoldNothing(t *testing.T) {
	b := ledgertest.New(t, ledgertest.Report("node-1", ledgertest.OneGiB))
	one, other := ledgertest.Want("copy", volume.GiB), ledgertest.Want("other", volume.GiB)
	one.Spec.CloneOf = "source"
	before, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
	for _, wants := range [][]ledger.Want{{one, other}, {other, one}} {
		require.ErrorContains(t, b.Take("node-1", wants...), "together, which are used by one pod")
		after, _ := b.Offer("node-1", volume.Spec{Group: "flexlvm"})
		require.Equal(t, before, after)
		require.Empty(t, b.Changes())
	}
}

func snapshot(name string) ledger.Want {
	w := ledgertest.Want(name, volume.GiB)
	w.Spec.Kind = volume.Snapshot
	return w
}

// A node that refuses a replica because of another volume of its dataset offers its room as before: the controller of
// datasets takes a smaller offer for a lack of room, and would displace replicas in vain.
func TestRefusedReplicaLowersNoOffer(t *testing.T) {
	barred := ledgertest.Want("pvc-1", volume.GiB)
	barred.Spec.Kind, barred.Spec.Name = volume.Dataset, "ds-0123456789abcdef"
	report := ledgertest.Report("node-1", 4*ledgertest.OneGiB)
	report.Status.Orphans = []flexlvmv1.Orphan{{Pool: "flexlvm", Name: "ds-0123456789abcdef"}}
	b := ledgertest.New(t, report)
	replica := volume.Spec{Group: "flexlvm", Kind: volume.Dataset}
	all, _ := b.Offer("node-1", replica)
	require.Greater(t, all.MaxVolumeSize, volume.GiB)
	require.ErrorContains(t, b.Take("node-1", barred), "has a volume ds-0123456789abcdef without a PersistentVolume")
	after, _ := b.Offer("node-1", replica)
	require.Equal(t, all, after)
}
