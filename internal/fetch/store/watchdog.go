package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Watchdog ends a request whose bytes come too slowly: each stretch of
// watchBytes must come within the limit.
type Watchdog struct {
	limit time.Duration
	timer *time.Timer
	left  int64
}

const watchBytes = 64 * KiB

// WatchStall starts a watchdog on a context that it makes. The caller calls stop.
func WatchStall(ctx context.Context, limit time.Duration) (context.Context, *Watchdog, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &Watchdog{limit: limit, left: watchBytes}
	if limit > 0 {
		w.timer = time.AfterFunc(limit, func() { cancel(ErrStalled) })
	}
	return ctx, w, func() {
		if w.timer != nil {
			w.timer.Stop()
		}
		cancel(nil)
	}
}

// Seen tells the watchdog of n more bytes.
func (w *Watchdog) Seen(n int64) {
	if w.left -= n; w.left <= 0 {
		w.left = watchBytes
		w.Reset()
	}
}

type fed struct {
	io.Reader
	dog *Watchdog
}

// Feed makes a reader that tells the watchdog of what comes.
func (w *Watchdog) Feed(r io.Reader) io.Reader { return fed{r, w} }

func (f fed) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.dog.Seen(int64(n))
	return n, err
}

// Reset gives the full time again; after a pause that was not the source's.
func (w *Watchdog) Reset() {
	if w.timer != nil {
		w.timer.Reset(w.limit)
	}
}

// Pause lets no time count until reset: what is waited for is not the source.
func (w *Watchdog) Pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Await gives the full time and more: all was sent, and the answer may take a while.
func (w *Watchdog) Await(more time.Duration) {
	if w.timer != nil {
		w.timer.Reset(w.limit + more)
	}
}

// Cause is why a request on ctx failed with err: the watchdog's reason, or that
// of whoever ended the run, comes before what the connection made of it.
func Cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w (%w)", why, err)
	}
	return err
}
