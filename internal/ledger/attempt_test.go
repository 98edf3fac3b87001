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

// A new leader has read a PersistentVolume from the API server that its watch does not show yet. An attempt to reserve
// room for it and for the other claims of its pod fails. Its room is promised to nobody else.
func TestInheritedRoomOutlivesAFailedAttempt(t *testing.T) {
	gib := ledgertest.OneGiB
	b := ledgertest.New(t, ledgertest.Report("node-1", 2*gib))
	x, y, other := ledgertest.Want("x", volume.GiB), ledgertest.Want("y", 2*volume.GiB), ledgertest.Want("other", 2*volume.GiB-100*volume.MiB)
	b.Inherited(ledgertest.PersistentVolume("node-1", x))
	for range 3 {
		require.ErrorContains(t, b.Take("node-1", x, y), "has no room")
		require.Equal(t, gib, b.Room("node-1"))
		require.ErrorContains(t, b.Take("node-1", other), "has no room")
	}
	b.Written(ledgertest.PersistentVolume("node-1", x))
	require.Equal(t, gib, b.Room("node-1"), "it is charged once")
	b.Now = b.Now.Add(ledger.ReservationTime)
	require.Equal(t, gib, b.Room("node-1"))
}

// The result of a write is unknown. The next attempt fails, because the node's pool has just been closed, and a later
// one may succeed.
func TestRoomOfAWriteOutlivesAFailedAttempt(t *testing.T) {
	gib := ledgertest.OneGiB
	closed := func(p *flexlvmv1.Pool) { p.Closed = "a device is missing" }
	begin := func() *ledgertest.Books {
		b := ledgertest.New(t, ledgertest.Report("node-1", 2*gib))
		require.NoError(t, b.Take("node-1", ledgertest.Want("x", volume.GiB)))
		b.Report(ledgertest.Report("node-1", 2*gib, closed))
		require.ErrorContains(t, b.Take("node-1", ledgertest.Want("x", volume.GiB)), "a device is missing")
		b.Report(ledgertest.Report("node-1", 2*gib))
		require.Equal(t, gib, b.Room("node-1"))
		return b
	}
	t.Run("written", func(t *testing.T) {
		b := begin()
		b.Written(ledgertest.PersistentVolume("node-1", ledgertest.Want("x", volume.GiB)))
		require.Equal(t, gib, b.Room("node-1"))
	})
	t.Run("not written", func(t *testing.T) {
		b := begin()
		b.Now = b.Now.Add(ledger.ReservationTime)
		require.Equal(t, 2*gib, b.Room("node-1"))
		require.Zero(t, b.ExpireReservations("node-1"))
	})
	t.Run("written by another attempt", func(t *testing.T) {
		b := begin()
		require.NoError(t, b.Fits("node-1", ledgertest.Want("x", 2*volume.GiB)), "it is not in its own way")
		require.Equal(t, gib, b.Room("node-1"))
		require.NoError(t, b.Take("node-1", ledgertest.Want("x", volume.GiB)))
		require.Equal(t, gib, b.Room("node-1"))
	})
	t.Run("another claim of its pod", func(t *testing.T) {
		b := begin()
		require.NoError(t, b.Take("node-1", ledgertest.Want("y", volume.GiB/2), ledgertest.Want("x", volume.GiB)))
		b.Now = b.Now.Add(ledger.OtherClaimTime)
		require.ErrorContains(t, b.Take("node-1", ledgertest.Want("other", volume.GiB)), "has no room", "it is reserved for as long as before")
	})
}

// A claim moves to another node after an attempt whose result is unknown. The PersistentVolume may be on either.
func TestRoomOfAWriteOutlivesAMove(t *testing.T) {
	gib := ledgertest.OneGiB
	x := ledgertest.Want("x", volume.GiB)
	begin := func() *ledgertest.Books {
		b := ledgertest.New(t, ledgertest.Report("node-1", 2*gib), ledgertest.Report("node-2", 2*gib))
		require.NoError(t, b.Take("node-1", x))
		require.NoError(t, b.Fits("node-2", x))
		require.Equal(t, 2*gib, b.Room("node-2"))
		b.Now = b.Now.Add(time.Minute)
		require.NoError(t, b.Take("node-2", x))
		require.Equal(t, []volume.Bytes{gib, gib}, []volume.Bytes{b.Room("node-1"), b.Room("node-2")})
		return b
	}
	t.Run("written on the first", func(t *testing.T) {
		b := begin()
		b.Written(ledgertest.PersistentVolume("node-1", x))
		require.Equal(t, []volume.Bytes{gib, 2 * gib}, []volume.Bytes{b.Room("node-1"), b.Room("node-2")})
	})
	t.Run("written on the second", func(t *testing.T) {
		b := begin()
		b.Written(ledgertest.PersistentVolume("node-2", x))
		b.Now = b.Now.Add(ledger.ReservationTime - time.Minute)
		require.Equal(t, []volume.Bytes{2 * gib, gib}, []volume.Bytes{b.Room("node-1"), b.Room("node-2")}, "for as long as the first attempt might write")
	})
	t.Run("back on the first", func(t *testing.T) {
		b := begin()
		require.NoError(t, b.Take("node-1", x))
		require.Equal(t, []volume.Bytes{gib, gib}, []volume.Bytes{b.Room("node-1"), b.Room("node-2")})
		b.Now = b.Now.Add(ledger.ReservationTime)
		require.Equal(t, []volume.Bytes{2 * gib, 2 * gib}, []volume.Bytes{b.Room("node-1"), b.Room("node-2")})
	})
	t.Run("a replica", func(t *testing.T) {
		b := ledgertest.New(t, ledgertest.Report("node-1", 3*gib), ledgertest.Report("node-2", 3*gib))
		first, second := ledgertest.Want("pvc-1", volume.GiB), ledgertest.Want("pvc-2", volume.GiB)
		first.Spec.Kind, first.Spec.Name = volume.Dataset, "ds-1"
		second.Spec.Kind, second.Spec.Name = volume.Dataset, "ds-1"
		require.NoError(t, b.Take("node-1", first))
		require.NoError(t, b.Take("node-2", first))
		require.ErrorContains(t, b.Take("node-1", second), `or is about to (PersistentVolume "pvc-1")`)
		require.NoError(t, b.Take("node-1", first))
	})
}

// The answer to a creation may come after the watch has shown the PersistentVolume, and even its end.
func TestCreatedAfterItsEndIsNotCharged(t *testing.T) {
	gib := ledgertest.OneGiB
	want := ledgertest.Want("x", volume.GiB)
	made := ledgertest.PersistentVolume("node-1", want)
	t.Run("before the watch", func(t *testing.T) {
		b := ledgertest.New(t, madeAt(0, 3*gib))
		require.NoError(t, b.Take("node-1", want))
		b.Created(made)
		b.Now = b.Now.Add(ledger.ReservationTime)
		b.Report(madeAt(1, 3*gib))
		require.Equal(t, 2*gib, b.Room("node-1"), "the watch hangs")
	})
	t.Run("after its end", func(t *testing.T) {
		b := ledgertest.New(t, madeAt(0, 3*gib))
		require.NoError(t, b.Take("node-1", want))
		b.Written(made)
		b.Gone("x")
		_, at, ask := b.Unconfirmed("node-1")
		require.True(t, ask)
		b.Confirm(madeAt(1, 3*gib), at)
		b.Created(made)
		b.Report(madeAt(2, 3*gib))
		b.Report(madeAt(3, 3*gib))
		require.Equal(t, 3*gib, b.Room("node-1"))
	})
}
