package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// hangGrace is how long a call that was given up may take to return: long enough for a call that is
	// only slow, whose object is then retried like that of any source, and short compared with the 30 s
	// that the kubelet leaves a pod after SIGTERM.
	hangGrace = 5 * time.Second
	// hangCheckInterval is how often the calls that have not returned are checked.
	hangCheckInterval = time.Second
)

// calls are the kernel calls announced during FailIfHung.
type calls struct {
	mu   sync.Mutex
	open map[*call]struct{} // calls that have not returned
	last time.Time          // when a call returned last
}

// call is an announced kernel call.
type call struct {
	ctx         context.Context
	doing, name string
	began       time.Time
	givenUp     time.Time // zero until it is given up
}

type callsKey struct{}

// FailIfHung returns what f returns. If a call that f has announced with TrackCall hangs, it returns an
// *Error about the call, although f continues: the program must then exit, because such a call ends
// only with its process. stall is how long a call may take; 0 is no limit.
func FailIfHung(ctx context.Context, stall time.Duration, f func(context.Context) error) error {
	c := &calls{open: map[*call]struct{}{}}
	ended := make(chan error, 1)
	go func() { ended <- f(context.WithValue(ctx, callsKey{}, c)) }()
	ticker := time.NewTicker(hangCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			if err := c.hung(stall); err != nil {
				return err
			}
		}
	}
}

// TrackCall announces a call that no context can end, such as one on a file of a mounted file system,
// which waits in the kernel for the file server. doing and name describe the call, such as "reading"
// and a path. The caller must call returned when the call has returned. A call counts as hanging if it
// was given up, because it took as long as a call may or because ctx has ended, and neither it nor any
// other call has returned within a grace period.
func TrackCall(ctx context.Context, doing, name string) (returned func()) {
	c, is := ctx.Value(callsKey{}).(*calls)
	if !is {
		return func() {}
	}
	w := &call{ctx: ctx, doing: doing, name: name, began: time.Now()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[w] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.open, w)
		c.last = time.Now()
	}
}

// hung returns the error of the call that has hung longest; nil if no call hangs.
func (c *calls) hung(stall time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	var longest *call
	for w := range c.open {
		if w.givenUp.IsZero() && (w.ctx.Err() != nil || stall > 0 && now.Sub(w.began) >= stall) {
			w.givenUp = now
		}
		if !w.givenUp.IsZero() && now.Sub(w.givenUp) >= hangGrace && (longest == nil || w.began.Before(longest.began)) {
			longest = w
		}
	}
	// A file server that answers other calls is reachable: it is slow, or its disk is.
	if longest == nil || now.Sub(c.last) < hangGrace {
		return nil
	}
	why := context.Cause(longest.ctx)
	if why == nil {
		why = ErrStalled
	}
	return Failure(fmt.Errorf("%s %s: nothing has come for %s; see whether the server of the mounted file system answers: %w",
		longest.doing, longest.name, now.Sub(longest.began).Round(time.Second), why), Classify(why) == Transient)
}
