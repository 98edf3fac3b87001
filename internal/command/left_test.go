package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// At most maxLeft processes of a hanging command run, however often it is retried. Other commands are
// not affected, and the command is started again once one of its processes has ended.
func TestCommandsThatHangAreBounded(t *testing.T) {
	dir := t.TempDir()
	host := script(t, "lvs", fmt.Sprintf(`
[ "$1" = hangs ] || exit 0
trap '' TERM
: > %s/$$
while [ -e %s/$$ ]; do /bin/sleep 0.02; done`, dir, dir))
	run := In(host.Unkillable, os.Stdin) // both runners count the same processes
	for _, r := range []any{host.Unkillable, run} {
		r.(*runner).killGracePeriod, r.(*runner).group = 50*time.Millisecond, nil
	}
	running := func() []string {
		all, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		return all
	}
	t.Cleanup(func() {
		for _, file := range running() {
			_ = os.Remove(file)
		}
	})
	for n := range maxLeft {
		ctx, deadline := context.WithCancelCause(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- run.CommandContext(ctx, "lvs", "hangs").Run() }()
		require.Eventually(t, func() bool { return len(running()) == n+1 }, time.Minute, time.Millisecond)
		deadline(context.DeadlineExceeded)
		require.ErrorContains(t, <-failed, "left to finish")
	}
	require.ErrorContains(t, host.Unkillable.Command("lvs", "hangs").Run(), "run lvs hangs: 3 earlier processes of this command have not ended")
	require.Len(t, running(), maxLeft)
	require.NoError(t, host.Unkillable.Command("lvs", "works").Run())

	require.NoError(t, os.Remove(running()[0]))
	require.Eventually(t, func() bool { return run.(*runner).left.refuse("lvs hangs") == nil }, time.Minute, time.Millisecond)
	c := run.Command("lvs", "hangs")
	require.NoError(t, c.Start())
	require.Eventually(t, func() bool { return len(running()) == maxLeft }, time.Minute, time.Millisecond)
	for _, file := range running() {
		require.NoError(t, os.Remove(file))
	}
	require.NoError(t, c.Wait())
	require.Eventually(t, func() bool {
		l := run.(*runner).left
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.of) == 0
	}, time.Minute, time.Millisecond, "nothing is kept of what has ended")
}
