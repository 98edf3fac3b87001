package lock

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOneHolderAtATime(t *testing.T) {
	d := Dir(t.TempDir() + "/locks")
	var holders, most atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				release, err := d.Acquire(t.Context(), "f", "key")
				require.NoError(t, err)
				if n := holders.Add(1); n > most.Load() {
					most.Store(n)
				}
				holders.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, most.Load())
}

func TestDeadlineNamesTheLock(t *testing.T) {
	d := Dir(t.TempDir())
	release, err := d.Acquire(t.Context(), "f", "volume a")
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = d.Acquire(ctx, "f", "volume a")
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "volume a")

	other, err := d.Acquire(t.Context(), "f", "volume b")
	require.NoError(t, err, "another key of the same file is free")
	other()
	release()
	again, err := d.Acquire(t.Context(), "f", "volume a")
	require.NoError(t, err)
	again()
}

func TestNoFileForEveryKey(t *testing.T) {
	dir := t.TempDir()
	for _, key := range []string{"a", "b", "c"} {
		release, err := Dir(dir).Acquire(t.Context(), "f", key)
		require.NoError(t, err)
		release()
	}
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 1)
}

func TestLinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink("/dev/null", dir+"/f"))
	_, err := Dir(dir).Acquire(t.Context(), "f", "a")
	require.Error(t, err)
}
