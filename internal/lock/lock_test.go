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
	failures := make(chan error, 8*10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				release, err := d.Acquire(t.Context(), "f", "key")
				failures <- err
				if err != nil {
					return
				}
				if n := holders.Add(1); n > 1 {
					most.Store(n)
				}
				<-time.After(time.Millisecond) // long enough for another to come in
				holders.Add(-1)
				release()
			}
		})
	}
	wg.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
	require.Zero(t, most.Load(), "as many held it at once")
}

// A holder in another process keeps us out until it dies. This test runs itself
// as that process.
func TestHolderInAnotherProcess(t *testing.T) {
	const variable = "FLEXLVM_TEST_HOLDER"
	if dir := os.Getenv(variable); dir != "" {
		_, err := Dir(dir).Acquire(t.Context(), "f", "key")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dir+"/held", nil, 0o600))
		<-time.After(time.Minute)
		return
	}
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	holder, err := os.StartProcess(self, []string{self, "-test.run", "^TestHolderInAnotherProcess$"},
		&os.ProcAttr{Env: []string{variable + "=" + dir}, Files: []*os.File{nil, nil, nil}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Stat(dir + "/held"); return err == nil }, time.Minute, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = Dir(dir).Acquire(ctx, "f", "key")
	require.ErrorIs(t, err, ErrBusy)
	_, acquired, err := Dir(dir).Try("f", "key")
	require.NoError(t, err)
	require.False(t, acquired)
	require.NoError(t, holder.Kill())
	_, err = holder.Wait()
	require.NoError(t, err)
	release, acquired, err := Dir(dir).Try("f", "key")
	require.NoError(t, err)
	require.True(t, acquired)
	release()
	release, err = Dir(dir).Acquire(t.Context(), "f", "key")
	require.NoError(t, err)
	release()
}

// A caller that holds a lock nearly all the time, and yields, lets others take it.
func TestYield(t *testing.T) {
	d := Dir(t.TempDir())
	done, ended := make(chan struct{}), make(chan error, 1)
	first, err := d.Acquire(t.Context(), "f", "key")
	require.NoError(t, err)
	go func() {
		release, err := first, error(nil)
		for err == nil {
			<-time.After(300 * time.Millisecond) // until others poll as seldom as they do
			release()
			select {
			case <-done:
				ended <- nil
				return
			default:
			}
			if err = Yield(t.Context()); err == nil {
				release, err = d.Acquire(t.Context(), "f", "key")
			}
		}
		ended <- err
	}()
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		began := time.Now()
		release, err := d.Acquire(ctx, "f", "key")
		cancel()
		require.NoError(t, err)
		t.Logf("it took %s", time.Since(began))
		release()
		<-time.After(2 * yieldTime) // the other has it again
	}
	close(done)
	require.NoError(t, <-ended)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Yield(ctx), context.Canceled)
}

func TestHeldIsSeenWithoutTakingIt(t *testing.T) {
	d := Dir(t.TempDir())
	held := func(key string) bool {
		held, err := d.Held("a", key)
		require.NoError(t, err)
		return held
	}
	require.False(t, held("x"))
	release, acquired, err := d.Try("a", "x")
	require.NoError(t, err)
	require.True(t, acquired, "looking takes nothing")
	require.True(t, held("x"))
	require.False(t, held("y"))
	release()
	require.False(t, held("x"))
}

func TestDirectoryOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := Dir(dir).Acquire(t.Context(), "f", "key")
	require.ErrorContains(t, err, "only user")
	_, acquired, err := Dir(dir).Try("f", "key")
	require.ErrorContains(t, err, "only user")
	require.False(t, acquired)
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
