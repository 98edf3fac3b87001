package node

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// One of the calls that wait for room retries at a time, but the next one need not wait until the one that
// has its room has created a file system in it.
func TestNextCallTriesOnceOneHasItsRoom(t *testing.T) {
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir(), RoomTimeout: time.Minute}, noPrograms(t))
	require.NoError(t, err)
	release, acquired, err := e.locks.Try(daemonLock())
	require.NoError(t, err)
	require.True(t, acquired)
	defer release()

	const calls = 3
	waits, trying := make(chan bool, calls), make(chan bool, calls)
	lvcreate, mkfs := make(chan bool), make(chan bool)
	ended := make(chan error, calls)
	for range calls {
		go func() {
			first := true
			ended <- e.retryForRoom(t.Context(), volume.Group("flexlvm"), func(ctx context.Context) error {
				if first {
					first = false
					waits <- true
					return fmt.Errorf("lvcreate: %w", lvm.ErrNoSpace)
				}
				trying <- true
				<-lvcreate
				endRetryTurn(ctx)
				<-mkfs
				return nil
			})
		}()
	}
	for range calls {
		<-waits
	}
	e.signalRoomFreed()
	for i := range calls {
		select {
		case <-trying:
		case <-time.After(time.Minute):
			t.Fatalf("call %d waits for the file system of another", i)
		}
		select {
		case <-trying:
			t.Fatal("two calls try at once")
		case <-time.After(3 * roomCheck):
		}
		lvcreate <- true
	}
	close(mkfs)
	for range calls {
		require.NoError(t, <-ended)
	}
}
