package fetch

import (
	"context"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// rangeTask fetches one range. The worker that ends the last range completes the object.
func (w *worker) rangeTask(ctx context.Context, t task) {
	defer processors.add()()
	a := t.large
	a.mu.Lock()
	failedAlready := a.err != nil
	a.mu.Unlock()
	var err error
	if !failedAlready {
		err = w.receiveRange(ctx, a, t.part)
	}
	a.mu.Lock()
	if err != nil && a.err == nil {
		a.err = err
	}
	a.open--
	last := a.open == 0
	a.mu.Unlock()
	if last {
		w.complete(ctx, a)
	}
}

// receiveRange receives a range into its place. If the object has changed, the whole object is begun again, not this
// range.
func (w *worker) receiveRange(ctx context.Context, a *largeObject, left store.Span) error {
	for ended := false; !ended; {
		err := w.attempts(ctx, a.object.Key, func(ctx context.Context) error {
			if left.Length == 0 { // all bytes have arrived, but the end behind them could not be read
				err := w.readEndAgain(ctx, a.object, left.Offset)
				ended = err == nil
				return err
			}
			before := left
			err := w.pieces(ctx, a, &left)
			ended = err == nil
			if left != before && store.Classify(err) == store.Transient && context.Cause(ctx) == nil {
				return nil // continue behind the received bytes, with a new count of attempts
			}
			return err
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// readEndAgain reads the byte before the end of a range, and the end, which reports whether the object changed while
// the range was read (see readEOF).
func (w *worker) readEndAgain(ctx context.Context, o store.Object, end int64) error {
	ctx, _, stop := store.WatchStall(ctx, w.Stall)
	defer stop()
	stream, err := w.openRange(ctx, o, store.Span{Offset: end - 1, Length: 1})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Body.Close() }()
	if _, err := io.CopyN(io.Discard, stream.Body, 1); err != nil {
		return store.Cause(ctx, err)
	}
	return w.readEOF(ctx, stream.Body)
}

// openRange begins to read a range of an object, and fails if the object has changed.
func (w *worker) openRange(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	stream, err := w.Store.Open(ctx, o, part)
	if err != nil {
		return store.Stream{}, store.Cause(ctx, err)
	}
	if stream.Size != o.Size {
		_ = stream.Body.Close()
		return store.Stream{}, fmt.Errorf("%w: it has %d bytes, and had %d when it was listed", store.ErrChanged, stream.Size, o.Size)
	}
	return stream, nil
}

// pieceSize is how many bytes of a range are noted in the journal at a time: at most that many are lost
// when a request breaks or the process is killed.
const pieceSize = store.MiB

// pieces receives the rest of a range into its place, piece by piece, and removes each received piece
// from left.
func (w *worker) pieces(ctx context.Context, a *largeObject, left *store.Span) error {
	ctx, watchdog, stop := store.WatchStall(ctx, w.Stall)
	defer stop()
	stream, err := w.openRange(ctx, a.object, *left)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Body.Close() }()
	for left.Length > 0 {
		if err := w.piece(ctx, watchdog, stream.Body, a, store.Span{Offset: left.Offset, Length: min(pieceSize, left.Length)}); err != nil {
			return err
		}
		step := min(pieceSize, left.Length)
		left.Offset, left.Length = left.Offset+step, left.Length-step
	}
	return w.readEOF(ctx, stream.Body)
}

// piece receives one piece, notes it, and adds its sum to the large object's.
func (w *worker) piece(ctx context.Context, watchdog *store.Watchdog, body io.Reader, a *largeObject, part store.Span) error {
	of := store.Check{Kind: store.CheckSize}
	if a.check.Combines() {
		of = a.check
	}
	direct, admitted := a.direct, false
	if a.hasher != nil {
		watchdog.Pause() // until receive resets it
		if admitted = a.hasher.admit(part.Offset); !admitted {
			direct = nil // the hasher reads it from the page cache
		}
	}
	r := newReceiver(of)
	err := w.receive(ctx, watchdog, body, part, r, func(data []byte, at int64) error {
		return destination.WriteAt(a.file, direct, data, at)
	})
	if err == nil {
		watchdog.Pause() // the watchdog is for the source, not for the disk
		err = w.journal.write(noteOf(a.object, a.temp, part, r.crc(), store.Check{}))
		watchdog.Reset()
	}
	if err != nil {
		w.arrived(-r.size)
		return err
	}
	crc := store.SumOf{Span: part, Sum: r.crc64.Sum(nil)}
	sum := crc
	if r.hash != nil {
		sum.Sum = r.hash.Sum(nil)
	}
	a.mu.Lock()
	a.sums, a.crcs = append(a.sums, sum), append(a.crcs, crc)
	a.mu.Unlock()
	if a.hasher != nil {
		w.buf = a.hasher.add(part, w.buf, admitted)
	}
	return nil
}
