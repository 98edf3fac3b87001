package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/exec"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/command/commandtest"
)

// A deadlines records the deadline of the last program.
type deadlines struct {
	commandtest.Func
	last time.Time
}

func (d *deadlines) CommandContext(ctx context.Context, name string, args ...string) exec.Cmd {
	d.last, _ = ctx.Deadline()
	return d.Func.CommandContext(ctx, name, args...)
}

// No caller waits for CreateAhead, so its mkfs has a longer deadline than other programs, and than mkfs in a mount.
func TestCreateAheadHasTime(t *testing.T) {
	run := &deadlines{Func: (&fakeGroup{}).run}
	e, err := New(Config{StateDir: t.TempDir(), LockDir: t.TempDir()}, command.Programs{Unkillable: run, Killable: run})
	require.NoError(t, err)
	spec := cloneSpec()
	spec.CloneOf = ""
	require.Error(t, e.CreateAhead(t.Context(), spec, stillWanted))
	require.Greater(t, time.Until(run.last), createAheadDeadline/2)
}
