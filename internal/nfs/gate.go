package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// A gate leads to an export. A call on a server that does not answer hangs in the
// kernel, and nothing but the end of the process can end it. So calls are made
// beside the one who waits for them, who waits for so long and no longer; and there
// are never more than so many, and never two for one volume.
type gate struct {
	export   Export
	patience time.Duration // for one call
	most     int
	now      func() time.Time

	mu   sync.Mutex
	busy map[string]time.Time // since when, by volume
}

func newGate(e Export, patience time.Duration, most int, now func() time.Time) *gate {
	return &gate{export: e, patience: patience, most: most, now: now, busy: map[string]time.Time{}}
}

// errSilent says that the server may not answer, so that what was begun may yet be
// done.
var errSilent = errors.New("the server does not answer")

// do calls op with the export, once for a volume at a time. op must look at its
// context before every change: once that has ended, nobody waits for it any more.
// An error wraps errSilent where nobody knows what op has done, or will do.
func (g *gate) do(caller context.Context, volume string, op func(context.Context, *os.Root) error) error {
	if err := g.enter(volume); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(caller, g.patience)
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
			return caller.Err() // the process is told to end
		}
		return fmt.Errorf("export %s: %w: nothing came back in %s; it is tried again", g.export, errSilent, g.patience)
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
		return fmt.Errorf("export %s: %w: an earlier attempt has been waiting for %s; it is tried again", g.export, errSilent, g.now().Sub(since).Round(time.Second))
	}
	if len(g.busy) >= g.most {
		return fmt.Errorf("export %s: %w: %d calls wait for it already; it is tried again", g.export, errSilent, len(g.busy))
	}
	g.busy[volume] = g.now()
	return nil
}

func (g *gate) leave(volume string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.busy, volume)
}

// waiting is how many calls are under way.
func (g *gate) waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.busy)
}

// explain says what to do about what a server refuses.
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
		advice = "the server exports another directory than it did; restart the provisioner's pod so that it is mounted anew"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		advice = "there is no room left on the server, or within the directory's own limit there; make some, or raise that limit"
	case errors.Is(err, syscall.EXDEV):
		advice = "the exported directory itself has a project (xfs_quota), so XFS renames nothing of another into it; export one that has none"
	default:
		return fmt.Errorf("export %s: %w", g.export, err)
	}
	return fmt.Errorf("export %s: %w: %s, it is tried again", g.export, err, advice)
}
