package provision

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The charges of deleted PersistentVolumes stay until the report of their node has been read from the API server
// itself. One answer serves all that are gone by then.
func TestPublishConfirmsDepartures(t *testing.T) {
	s := newStage(t)
	full, emptier := storageOf("node-1", 3*ledgertest.OneGiB), storageOf("node-1", ledgertest.OneGiB)
	full.Status.Pools[0].UUID, emptier.Status.Pools[0].UUID = ledgertest.GroupUUID, ledgertest.GroupUUID
	var asked []string
	fails := errors.New("no answer")
	s.report = func(_ context.Context, node string) (*flexlvmv1.NodeStorage, error) {
		asked = append(asked, node)
		return emptier, fails
	}
	offered := func() int64 { return s.there(t)[0].MaximumVolumeSize.Value() }
	next := func() {
		s.enqueue("node-1")
		require.True(t, s.next(t.Context()))
	}
	s.ledger.Report(full)
	for _, name := range []string{"a", "b", "c"} {
		s.ledger.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want(name, volume.GiB)))
	}
	next()
	require.Empty(t, asked)
	s.ledger.Gone("a")
	s.ledger.Gone("b")
	next()
	require.Equal(t, []string{"node-1"}, asked)
	require.Zero(t, offered(), "on an error it stays charged")
	fails = nil
	emptier.Status.Pools[0].Allocatable = ledgertest.Quantity(2 * ledgertest.OneGiB) // the charge of c, and 1 GiB more
	require.True(t, s.next(t.Context()), "it is retried without a change")
	require.Len(t, asked, 2)
	require.Equal(t, int64(within(ledgertest.OneGiB)), offered())
	next()
	require.Len(t, asked, 2)

	s.ledger.Gone("c")
	s.ledger.Forget(full)
	fails = apierrors.NewNotFound(schema.GroupResource{Resource: "nodestorages"}, "node-1")
	next()
	next()
	require.Len(t, asked, 3, "where there is no report, nothing stays charged")
	require.Eventually(t, func() bool { return len(s.there(t)) == 0 }, time.Minute, time.Millisecond)
}

// A new leader starts with the reports that the API server itself has, because its watch may start with older ones.
func TestExistingReportsAreConfirmed(t *testing.T) {
	s := newStage(t)
	older, newer := storageOf("node-1", 3*volume.GiB), storageOf("node-1", volume.GiB)
	older.ResourceVersion, newer.ResourceVersion = "5", "6"
	s.ledger.Report(older)
	require.True(t, reserveExisting(t.Context(), Config{Client: s.client, Storage: serveReports(t, *newer)}, s.ledger))
	s.ledger.Report(older)
	offer, _ := s.ledger.Offer("node-1", volume.Spec{Group: "flexlvm"})
	require.Equal(t, volume.GiB, offer.Room)
}
