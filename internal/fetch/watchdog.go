package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// watchdog ends a request whose bytes come too slowly: each stretch of
// watchBytes must come within the limit.
type watchdog struct {
	limit time.Duration
	timer *time.Timer
	left  int64
}

const watchBytes = 64 * kib

// watch starts a watchdog on a context that it makes. The caller calls stop.
func watch(ctx context.Context, limit time.Duration) (context.Context, *watchdog, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{limit: limit, left: watchBytes}
	if limit > 0 {
		w.timer = time.AfterFunc(limit, func() { cancel(errStalled) })
	}
	return ctx, w, func() {
		if w.timer != nil {
			w.timer.Stop()
		}
		cancel(nil)
	}
}

// seen tells the watchdog of n more bytes.
func (w *watchdog) seen(n int64) {
	if w.left -= n; w.left <= 0 {
		w.left = watchBytes
		w.reset()
	}
}

// fed is a reader that tells a watchdog of what comes.
type fed struct {
	io.Reader
	dog *watchdog
}

func (f fed) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.dog.seen(int64(n))
	return n, err
}

// reset gives the full time again; after a pause that was not the source's.
func (w *watchdog) reset() {
	if w.timer != nil {
		w.timer.Reset(w.limit)
	}
}

// pause lets no time count until reset: what is waited for is not the source.
func (w *watchdog) pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// await gives the full time and more: all was sent, and the answer may take a while.
func (w *watchdog) await(more time.Duration) {
	if w.timer != nil {
		w.timer.Reset(w.limit + more)
	}
}

// cause is why a request on ctx failed with err: the watchdog's reason, or that
// of whoever ended the run, comes before what the connection made of it.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w (%w)", why, err)
	}
	return err
}
