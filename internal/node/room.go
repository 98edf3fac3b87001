package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// roomFile is touched whenever a volume is gone.
	roomFile = "room"
	// roomCheck is how often a call that waits for room looks whether there may be some.
	roomCheck = 100 * time.Millisecond
	// roomRetry is how often it tries even if no volume has gone: a person may have
	// added a disk.
	roomRetry = 10 * time.Second
)

// withRoom repeats a call that has failed for lack of room in a group whenever a volume is
// gone, for Config.RoomPatience at most. The provisioner promises what the node daemon can
// evict, so room is usually a second away; kubelet, whose calls fail, comes back only
// after a backoff of up to two minutes. Where no daemon is at work nobody makes room, and
// the call fails at once.
//
// call returns without any lock, so nothing waits for this but the pod. One call of a
// group tries at a time, until it has its room (gotRoom) or not: all at once would keep the
// daemon from LVM, whose eviction they wait for.
func (e *Engine) withRoom(ctx context.Context, g volume.Group, call func(context.Context) error) error {
	seen := e.roomMade()
	err := call(ctx)
	if !errors.Is(err, lvm.ErrNoSpace) || e.patience == 0 || !e.daemonWorks() {
		return err
	}
	e.log.WithError(err).WithField("for", e.patience).Info("waiting for room")
	e.wakeDaemon()
	for deadline := time.Now().Add(e.patience); e.awaitRoom(ctx, seen, deadline); {
		release, acquired, failed := e.locks.Try("room.lock", string(g))
		if failed != nil {
			return errors.Join(err, failed)
		}
		if !acquired {
			continue
		}
		seen = e.roomMade()
		release = sync.OnceFunc(release)
		err = call(context.WithValue(ctx, turn{}, release))
		release()
		if !errors.Is(err, lvm.ErrNoSpace) {
			break
		}
	}
	return err
}

// turn is the key under which the context of a call that has waited holds what ends its turn.
type turn struct{}

// gotRoom lets the next call try: this one has its room, and what is left to do, such as mkfs,
// takes longer than that.
func gotRoom(ctx context.Context) {
	if end, waited := ctx.Value(turn{}).(func()); waited {
		end()
	}
}

// daemonWorks reports whether a node daemon is at work on this node, or may be.
func (e *Engine) daemonWorks() bool {
	held, err := e.locks.Held(daemonLock())
	if err != nil {
		e.log.WithError(err).Warn("cannot tell whether a node daemon is at work")
	}
	return held || err != nil
}

// awaitRoom reports whether it is worth another try: a volume has gone since seen, or
// some time has passed. It returns false at the deadline.
func (e *Engine) awaitRoom(ctx context.Context, seen, deadline time.Time) bool {
	ticker := time.NewTicker(roomCheck)
	defer ticker.Stop()
	for retry := time.Now().Add(e.roomRetry); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if !e.roomMade().Equal(seen) || time.Now().After(retry) {
			return true
		}
	}
	return false
}

// announceRoom tells the calls that wait for room that a volume is gone.
func (e *Engine) announceRoom() {
	path := filepath.Join(e.stateDir, roomFile)
	if err := touch(path); err != nil {
		e.log.WithError(err).Warn("calls that wait for room try again a little later")
	}
}

// roomMade is when announceRoom was last called; zero if never, or if that is unknown.
func (e *Engine) roomMade() time.Time { return touchedAt(filepath.Join(e.stateDir, roomFile)) }

// touch makes an empty file, or makes it new.
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

// touchedAt is when a file was last touched; zero if it is not there, or unreadable.
func touchedAt(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
