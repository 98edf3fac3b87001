package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Watchdog ends a request whose bytes arrive too slowly: each watchBytes of them must arrive within the
// limit.
type Watchdog struct {
	limit time.Duration
	timer *time.Timer
	left  int64
}

const watchBytes = 64 * KiB

// WatchStall starts a watchdog on a new context. The caller must call the returned function to stop it.
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

// Seen counts n more bytes.
func (w *Watchdog) Seen(n int64) {
	if w.left -= n; w.left <= 0 {
		w.left = watchBytes
		w.Reset()
	}
}

type fed struct {
	io.Reader
	watchdog *Watchdog
}

// Feed returns a reader of r that counts its bytes with Seen.
func (w *Watchdog) Feed(r io.Reader) io.Reader { return fed{r, w} }

func (f fed) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	f.watchdog.Seen(int64(n))
	return n, err
}

// Reset restarts the full time, after a delay that the source did not cause.
func (w *Watchdog) Reset() {
	if w.timer != nil {
		w.timer.Reset(w.limit)
	}
}

// BackoffDelay stops the clock until Reset, during a delay that the source does not cause.
func (w *Watchdog) Pause() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// Await restarts the full time plus more: everything was sent, and the response may take a while.
func (w *Watchdog) Await(more time.Duration) {
	if w.timer != nil {
		w.timer.Reset(w.limit + more)
	}
}

// Cause returns why a request on ctx failed with err: the cause with which the watchdog or the caller has
// cancelled ctx comes before the connection's own error.
func Cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%w (%w)", why, err)
	}
	return err
}
