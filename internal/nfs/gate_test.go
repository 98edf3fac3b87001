package nfs

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func gateTo(dir string, ioTimeout time.Duration, maxBusy int) *gate {
	return newGate(Export{Server: "nfs", Path: "/srv", Dir: dir}, ioTimeout, maxBusy, time.Now)
}

// A server that does not respond holds the maximum number of calls, but not their callers.
func TestGateToASilentServer(t *testing.T) {
	g := gateTo(t.TempDir(), time.Second, 2)
	answers := make(chan struct{})
	var late atomic.Int32
	hang := func(ctx context.Context, _ *os.Root) error {
		<-answers
		if ctx.Err() == nil {
			late.Add(1)
		}
		return nil
	}
	for _, volume := range []string{"a", "b"} {
		err := g.do(t.Context(), volume, hang)
		require.ErrorIs(t, err, errSilent)
		require.ErrorContains(t, err, "export nfs:/srv: the server does not answer: nothing came back in 1s")
	}
	require.Equal(t, 2, g.waiting())
	never := func(context.Context, *os.Root) error { t.Error("called"); return nil }
	require.ErrorContains(t, g.do(t.Context(), "a", never), "an earlier attempt has been waiting")
	require.ErrorContains(t, g.do(t.Context(), "c", never), "2 calls wait for it already")

	close(answers)
	require.Eventually(t, func() bool { return g.waiting() == 0 }, time.Minute, time.Millisecond)
	require.Zero(t, late.Load(), "calls that nobody waits for see that by their context")
	g.ioTimeout = time.Minute
	require.NoError(t, g.do(t.Context(), "a", func(context.Context, *os.Root) error { return nil }))
}

// The age of the oldest call grows only while the same call runs: a server that answers many calls in a row is not
// silent.
func TestAgeOfTheOldestCall(t *testing.T) {
	now := time.Now()
	g := newGate(Export{Server: "nfs", Path: "/srv", Dir: t.TempDir()}, time.Minute, 3, func() time.Time { return now })
	require.Zero(t, g.oldest())
	require.NoError(t, g.enter("hangs"))
	for range 5 {
		require.NoError(t, g.enter("large"))
		now = now.Add(time.Minute)
		g.leave("large")
	}
	require.Equal(t, 5*time.Minute, g.oldest())
	g.leave("hangs")
	require.NoError(t, g.enter("large"))
	require.Zero(t, g.oldest())
}

func TestGateSaysWhatToDo(t *testing.T) {
	g := gateTo(t.TempDir(), time.Minute, 1)
	for errno, want := range map[syscall.Errno]string{
		syscall.EROFS:  "the export is read-only; export it rw",
		syscall.EACCES: "no_root_squash",
		syscall.EPERM:  "no_root_squash",
		syscall.ESTALE: "check first that the server has mounted the export's disk, then restart the provisioner's pod",
		syscall.ENOSPC: "no room",
		syscall.EDQUOT: "no room",
		syscall.EIO:    "input/output error",
	} {
		err := g.do(t.Context(), "a", func(context.Context, *os.Root) error { return &os.PathError{Op: "mkdir", Path: "x", Err: errno} })
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "export nfs:/srv")
		require.NotErrorIs(t, err, errSilent)
	}
	g = gateTo(filepath.Join(t.TempDir(), "nothing"), time.Minute, 1)
	require.ErrorIs(t, g.do(t.Context(), "a", nil), os.ErrNotExist)
}
