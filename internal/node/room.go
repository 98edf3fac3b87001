package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// roomFile is touched whenever room may have become free.
	roomFile = "room"
	// roomCheck is the interval at which a waiting call checks roomFile.
	roomCheck = 100 * time.Millisecond
	// roomRetry is the interval of retries even if no volume was removed: a person may have added a disk.
	roomRetry = 10 * time.Second
)

// retryForRoom retries a call that fails for lack of room in a group whenever a volume is removed, for at most
// Config.RoomTimeout. The provisioner promises what the node daemon can evict, so room is usually a second
// away, while kubelet retries a failed call only after a backoff of up to two minutes. If no daemon is
// running, nothing frees room, and the call fails immediately.
//
// call returns without any lock, so only the pod waits. One call per group retries at a time, until it has
// its room (endRetryTurn) or fails: concurrent retries would keep the daemon, for whose eviction they wait, from
// running LVM.
func (e *Engine) retryForRoom(ctx context.Context, g volume.Group, call func(context.Context) error) error {
	seen := e.roomFreedAt()
	err := call(ctx)
	if !errors.Is(err, lvm.ErrNoSpace) || e.roomTimeout == 0 || !e.daemonMayRun() {
		return err
	}
	e.log.WithError(err).WithField("for", e.roomTimeout).Info("waiting for room")
	e.wakeDaemon()
	for deadline := time.Now().Add(e.roomTimeout); e.awaitRoom(ctx, seen, deadline); {
		release, acquired, failed := e.locks.Try("room.lock", string(g))
		if failed != nil {
			return errors.Join(err, failed)
		}
		if !acquired {
			continue
		}
		seen = e.roomFreedAt()
		release = sync.OnceFunc(release)
		err = call(context.WithValue(ctx, retryTurnKey{}, release))
		release()
		if !errors.Is(err, lvm.ErrNoSpace) {
			break
		}
	}
	return err
}

// retryTurnKey is the context key of the function that ends the turn of a call that has waited.
type retryTurnKey struct{}

// endRetryTurn ends the turn of this call, if it has waited, so that the next call can retry. The first code that has
// its room ends the turn, before slow work such as mkfs.
func endRetryTurn(ctx context.Context) {
	if end, waited := ctx.Value(retryTurnKey{}).(func()); waited {
		end()
	}
}

// daemonMayRun reports whether a node daemon is running on this node, or may be.
func (e *Engine) daemonMayRun() bool {
	held, err := e.locks.Held(daemonLock())
	if err != nil {
		e.log.WithError(err).Warn("cannot determine whether a node daemon is running")
	}
	return held || err != nil
}

// awaitRoom reports whether another try is worthwhile: a volume was removed since seen, or roomRetry has
// passed. It returns false at the deadline.
func (e *Engine) awaitRoom(ctx context.Context, seen, deadline time.Time) bool {
	for retry := time.Now().Add(e.roomRetry); time.Now().Before(deadline); {
		if pause.For(ctx, roomCheck) != nil {
			return false
		}
		if !e.roomFreedAt().Equal(seen) || time.Now().After(retry) {
			return true
		}
	}
	return false
}

// signalRoomFreed wakes the calls that wait for room.
func (e *Engine) signalRoomFreed() {
	path := filepath.Join(e.stateDir, roomFile)
	if err := touch(path); err != nil {
		e.log.WithError(err).Warn("calls that wait for room try again a little later")
	}
}

// roomFreedAt returns when signalRoomFreed was last called; zero if never, or if that is unknown.
func (e *Engine) roomFreedAt() time.Time { return touchedAt(filepath.Join(e.stateDir, roomFile)) }

// touch creates an empty file, or sets its modification time to now.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	now := time.Now()
	return os.Chtimes(path, now, now)
}

// touchedAt returns when a file was last touched; zero if it does not exist or is unreadable.
func touchedAt(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
