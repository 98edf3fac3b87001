package fetch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// largeObject is an object that is assembled from ranges, in place, in a preallocated file. All
// ranges are pinned to one ETag.
type largeObject struct {
	object store.Object
	check  store.Check
	file   *os.File
	// direct is the same file for writes that bypass the page cache; may be nil.
	direct *os.File
	temp   string
	// hasher hashes the content if the check needs a hash of the whole in order; else nil.
	hasher *orderedHasher

	mu    sync.Mutex
	sums  []store.SumOf // of the received spans, for check.Combine
	crcs  []store.SumOf // the CRC64s of the received spans
	open  int           // spans that are not done
	err   error         // the first failure
	tries int           // how often the object was begun
}

// maxBeginnings bounds how often a large object is fetched from the start.
const maxBeginnings = 4

// beginLarge stats a large object, allocates its space, and adds its ranges to the queue. tries is how
// often the object was begun, this time included.
func (w *worker) beginLarge(ctx context.Context, o store.Object, tries int) {
	var sums store.Sums
	err := w.attempts(ctx, o.Key, func(ctx context.Context) error {
		ctx, _, stop := store.WatchStall(ctx, w.Stall)
		defer stop()
		now, s, err := w.Store.Stat(ctx, o.Key, o.Version)
		if err != nil {
			return store.Cause(ctx, err)
		}
		if now.Path = o.Path; !now.Same(o) {
			return store.ErrChanged
		}
		sums, o.NoRanges = s, now.NoRanges
		return nil
	}, func(ctx context.Context) error { return w.refresh(ctx, &o) })
	if err != nil {
		w.fail(o, err)
		return
	}
	if o.NoRanges {
		w.wholeTask(ctx, o)
		return
	}
	a := &largeObject{object: o, check: w.chooseCheck(sums, o.ETag), tries: tries}
	have, err := w.resume(a)
	if err != nil {
		w.fail(o, err)
		return
	}
	step := spanSize(o.Size)
	if h := a.check.Hasher(); h != nil && !a.check.Combines() {
		a.hasher = startOrderedHash(ctx, h, a.file, o.Size, have, w.pool)
		step = w.pool.stepOf(o.Size, step)
	}
	missing := spans(o.Size, step, have)
	a.open = len(missing)
	if a.open == 0 {
		w.complete(ctx, a)
		return
	}
	// A composite check reads the file again, which is faster from the page cache.
	if a.check.Kind != store.CheckComposite {
		a.direct = w.dest.OpenDirect(a.temp)
	}
	tasks := make([]task, len(missing))
	for i, s := range missing {
		tasks[i] = task{object: o, large: a, part: s}
	}
	w.queue.add(tasks...)
}

// resume opens the file of a large object: the file that an earlier run has left, keeping the ranges whose
// bytes are unchanged, or a new one.
func (w *worker) resume(a *largeObject) (have []store.Span, err error) {
	if r := w.leftovers[a.object.Path].of(a.object); r != nil && a.tries == 1 {
		if a.file, err = w.dest.Reopen(r.temp); err == nil {
			a.temp = r.temp
			return w.intactRanges(a, r.notes), nil
		}
		// A run killed between the rename and the manifest leaves the whole file under its name.
		if f, ok := w.openPublished(a.object, r); ok {
			a.file, a.temp = f, ""
			return w.intactRanges(a, r.notes), nil
		}
	}
	a.temp = w.tempName()
	a.file, err = w.dest.Create(a.temp, a.object.Size)
	return nil, err
}

// openPublished opens the file that already has its name. It is only read: if a range in it has changed, the
// object is fetched again from the start.
func (w *worker) openPublished(o store.Object, r *leftovers) (*os.File, bool) {
	file, err := w.dest.OpenFile(o.Path)
	if err != nil {
		return nil, false
	}
	info, err := file.Stat()
	good := err == nil && info.Size() == o.Size && len(spans(o.Size, o.Size, coverage(disjoint(r.notes)))) == 0
	for _, n := range disjoint(r.notes) {
		good = good && w.intact(file, n)
	}
	if !good {
		_ = file.Close()
	}
	return file, good
}

func coverage(notes []journalNote) []store.Span {
	var out []store.Span
	for _, n := range notes {
		out = append(out, n.Span)
	}
	return out
}

// intactRanges returns the ranges of the file whose bytes have the CRC noted when they arrived, and adds their
// sums to the large object's.
func (w *worker) intactRanges(a *largeObject, notes []journalNote) (have []store.Span) {
	for _, n := range disjoint(notes) {
		if !w.intact(a.file, n) {
			continue
		}
		sum, err := w.sumOf(a, n)
		if err != nil {
			continue
		}
		a.sums, a.crcs = append(a.sums, sum), append(a.crcs, crcOf(n))
		have = append(have, n.Span)
		w.arrived(n.Length)
	}
	return have
}

func crcOf(n journalNote) store.SumOf {
	return store.SumOf{Span: n.Span, Sum: n.crc()}
}

// sumOf returns the sum of a trusted range that the object's check needs.
func (w *worker) sumOf(a *largeObject, n journalNote) (store.SumOf, error) {
	if a.check.Kind == store.CheckCRC64 || !a.check.Combines() {
		return crcOf(n), nil
	}
	h := a.check.Hasher()
	err := store.HashInto(context.Background(), h, store.NewSection(a.file, n.Span), w.buf)
	return store.SumOf{Span: n.Span, Sum: h.Sum(nil)}, err
}

// complete verifies an object whose ranges are all done, or begins it again.
func (w *worker) complete(ctx context.Context, a *largeObject) {
	c, crc, err := w.verify(ctx, a)
	if a.hasher != nil {
		a.hasher.stop()
	}
	if a.direct != nil {
		_ = a.direct.Close() // no write is pending
	}
	if closeErr := a.file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		w.received(ctx, finishedFile(a.object, c, crc, a.temp))
		return
	}
	if context.Cause(ctx) != nil || errors.Is(err, store.ErrWrongSum) || !errors.Is(err, store.ErrChecksum) && store.Classify(err) != store.Changed {
		w.fail(a.object, err)
		return
	}
	// None of the received bytes can be used.
	for _, s := range a.sums {
		w.arrived(-s.Length)
	}
	if a.temp != "" {
		_ = w.dest.Tmp.Remove(a.temp)
	}
	if a.tries >= min(w.Attempts, maxBeginnings) {
		w.fail(a.object, err)
		return
	}
	w.Log.WithError(err).WithField("key", a.object.Key).Warn("Fetching a large object again from the start")
	if err := w.refresh(ctx, &a.object); err != nil {
		w.fail(a.object, err)
		return
	}
	w.beginLarge(ctx, a.object, a.tries+1)
}

// verify returns the check that an object whose ranges are all done has passed, and its CRC64.
func (w *worker) verify(ctx context.Context, a *largeObject) (c store.Check, crc []byte, err error) {
	if a.err != nil {
		return a.check, nil, a.err
	}
	if crc, err = a.crc64(); err == nil {
		c, err = w.verifyLarge(ctx, a)
		if err == nil || errors.Is(err, store.ErrChecksum) {
			c, err = w.resolveMismatch(a.object, c, a.content(), err, func() error { return w.checkOnDisk(ctx, a.file, a.object.Size, crc) })
		}
	}
	if err != nil {
		err = fmt.Errorf("check %q: %w", a.object.Key, err)
	}
	return c, crc, err
}

// crc64 returns the CRC64 of the whole object.
func (a *largeObject) crc64() ([]byte, error) {
	sort.Slice(a.crcs, func(i, j int) bool { return a.crcs[i].Offset < a.crcs[j].Offset })
	return store.Check{Kind: store.CheckCRC64}.Combined(a.crcs)
}

// content identifies the received content by the sums of its pieces.
func (a *largeObject) content() string {
	sort.Slice(a.sums, func(i, j int) bool { return a.sums[i].Offset < a.sums[j].Offset })
	h := store.NewCRC64()
	for _, s := range a.sums {
		_, _ = fmt.Fprintf(h, "%d %d %x,", s.Offset, s.Length, s.Sum)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// verifyLarge checks a whole object: by the sums of its ranges if they combine, by the hash of the
// content in order, or, for a composite checksum, by reading the file.
func (w *worker) verifyLarge(ctx context.Context, a *largeObject) (store.Check, error) {
	c := a.check
	switch {
	case c.Combines():
		sort.Slice(a.sums, func(i, j int) bool { return a.sums[i].Offset < a.sums[j].Offset })
		return c, c.Combine(a.sums)
	case c.Kind == store.CheckComposite:
		known, err := c.VerifyComposite(ctx, a.file, a.object.Size, w.buf, w.partsOf(a.object))
		if err == nil && !known {
			c = store.Check{Kind: store.CheckSize}
		}
		return c, err
	case c.Kind == store.CheckSize:
		return c, nil
	}
	sum, err := a.hasher.sum(ctx)
	if err != nil {
		return c, err
	}
	return c, c.Verify(sum)
}
