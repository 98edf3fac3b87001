package fetch

import (
	"context"
	"errors"
	"fmt"
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

// reset gives the full time again; after a pause that was not the source's.
func (w *watchdog) reset() {
	if w.timer != nil {
		w.timer.Reset(w.limit)
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
