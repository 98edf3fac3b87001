package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A gate guards the access to an export. A call to a server that does not respond hangs in the kernel,
// and only the end of the process can interrupt it. So each call runs in a goroutine, for which its
// caller waits no longer than ioTimeout. Only a limited number of calls (maxBusy) run at the same time, and
// only one per volume.
type gate struct {
	export    Export
	ioTimeout time.Duration // for one call
	maxBusy   int
	now       func() time.Time

	mu       sync.Mutex
	busy     map[string]time.Time // start time, by volume
	unusedAt time.Time            // end of the last list that showed no volume of this provisioner in the export

	// used reports that this process has made a directory in the export, or has seen a PersistentVolume of this
	// provisioner in it.
	used atomic.Bool
}

func newGate(e Export, ioTimeout time.Duration, maxBusy int, now func() time.Time) *gate {
	return &gate{export: e, ioTimeout: ioTimeout, maxBusy: maxBusy, now: now, busy: map[string]time.Time{}}
}

// errSilent means that the server may not respond, so that a started operation may still complete.
var errSilent = errors.New("the server does not answer")

// do calls op with the export, and runs only one op per volume at a time. op must check its context
// before every change: once the context has ended, nobody waits for op. An error wraps errSilent if it
// is unknown what op has done, or will do.
func (g *gate) do(caller context.Context, volume string, op func(context.Context, *os.Root) error) error {
	if err := g.enter(volume); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(caller, g.ioTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := g.open(ctx, op)
		g.leave(volume)
		done <- err
	}()
	select {
	case err := <-done:
		return g.explain(err)
	case <-ctx.Done():
		if caller.Err() != nil {
			return caller.Err() // the process is shutting down
		}
		return fmt.Errorf("export %s: %w: nothing came back in %s; it is retried", g.export, errSilent, g.ioTimeout)
	}
}

func (g *gate) open(ctx context.Context, op func(context.Context, *os.Root) error) (err error) {
	root, err := os.OpenRoot(g.export.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := ctx.Err(); err != nil {
		return err
	}
	return op(ctx, root)
}

func (g *gate) enter(volume string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if since, there := g.busy[volume]; there {
		return fmt.Errorf("export %s: %w: an earlier attempt has been waiting for %s; it is retried", g.export, errSilent, g.now().Sub(since).Round(time.Second))
	}
	if len(g.busy) >= g.maxBusy {
		return fmt.Errorf("export %s: %w: %d calls wait for it already; it is retried", g.export, errSilent, len(g.busy))
	}
	g.busy[volume] = g.now()
	return nil
}

func (g *gate) leave(volume string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.busy, volume)
}

// unusedFor is how long an export counts as unused after a list of all PersistentVolumes. All claims of an export that
// cannot be written are retried, and without this each attempt would list all PersistentVolumes from the API server.
const unusedFor = 10 * time.Second

// listed records that a list just showed no volume of this provisioner in the export.
func (g *gate) listed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unusedAt = g.now()
}

// listedLately reports whether such a list ended less than unusedFor ago.
func (g *gate) listedLately() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.unusedAt.IsZero() && g.now().Sub(g.unusedAt) < unusedFor
}

// waiting returns the number of running calls.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.busy)
}

// oldest returns for how long the oldest running call has been running; 0 if none runs. A server that
// responds ends each call soon after ioTimeout.
func (g *gate) oldest() (age time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, since := range g.busy {
		age = max(age, g.now().Sub(since))
	}
	return age
}

// explain adds advice to an error of the server.
func (g *gate) explain(err error) error {
	if err == nil {
		return nil
	}
	advice := ""
	switch {
	case errors.Is(err, syscall.EROFS):
		advice = "the export is read-only; export it rw (exports(5))"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		advice = "the server refuses this to root of the provisioner's node; export it with no_root_squash to the nodes (exports(5))"
	case errors.Is(err, syscall.ESTALE):
		advice = "the server exports another directory than it did; check first that the server has mounted the export's disk, then restart the provisioner's pod so that the export is mounted anew"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = "there is no room left on the server, or within the directory's own limit there; make some, or raise that limit"
	case errors.Is(err, syscall.EXDEV):
		advice = "the exported directory itself has a project (xfs_quota), so XFS renames nothing of another into it; export one that has none"
	default:
		return fmt.Errorf("export %s: %w", g.export, err)
	}
	return fmt.Errorf("export %s: %w: %s; it is retried", g.export, err, advice)
}
