package fetch

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// worker receives objects and ranges, one at a time, through one buffer.
type worker struct {
	*run
	buf []byte
	// subdir is the directory of its temporary files; files counts those it has created.
	subdir string
	files  int
}

// tempName returns a name that no other temporary file has.
func (w *worker) tempName() string {
	w.files++
	return w.subdir + "/" + w.id + "-" + strconv.Itoa(w.files)
}

// work runs tasks until there are none.
func (w *worker) work(ctx context.Context) {
	for {
		t, more := w.queue.next()
		if !more {
			return
		}
		switch {
		case t.large != nil:
			w.rangeTask(ctx, t)
		case t.object.Size > wholeLimit:
			w.beginLarge(ctx, t.object, 1)
		default:
			w.wholeTask(ctx, t.object)
		}
		w.queue.done()
	}
}

// wholeTask fetches a small object and passes it to the committer.
func (w *worker) wholeTask(ctx context.Context, o store.Object) {
	if f, ok := w.recoverFile(o); ok {
		w.arrived(o.Size)
		w.received(ctx, f)
		return
	}
	var f finished
	early := false
	err := w.attempts(ctx, o.Key, func(ctx context.Context) (err error) {
		f, err = w.whole(ctx, o)
		if early = o.Size > pieceSize && !o.NoRanges && endedEarly(ctx, err); early {
			return nil
		}
		return err
	}, func(ctx context.Context) error { return w.refresh(ctx, &o) })
	if early {
		// The server may never deliver it in one response. Fetched in pieces, it comes nearer to its
		// end with each attempt.
		w.beginLarge(ctx, o, 1)
		return
	}
	if err != nil {
		w.fail(o, err)
		return
	}
	w.received(ctx, f)
}

// endedEarly reports whether a request ended early although its content was right and it was not
// throttled.
func endedEarly(ctx context.Context, err error) bool {
	return err != nil && context.Cause(ctx) == nil && store.Classify(err) == store.Transient && !store.Throttled(err) && !errors.Is(err, store.ErrChecksum)
}

// attempts calls try until it succeeds, fails permanently, or has failed Attempts times. If the object
// has changed, it calls refresh before the next try; without refresh, a change is permanent.
func (w *worker) attempts(ctx context.Context, key string, try, refresh func(context.Context) error) error {
	for n := 1; ; n++ {
		w.gate.acquire()
		err := try(ctx)
		w.gate.release(store.Throttled(err), time.Now())
		if err == nil {
			return nil
		}
		if ctxErr := context.Cause(ctx); ctxErr != nil {
			return ctxErr
		}
		c := store.Classify(err)
		if n >= w.Attempts || c != store.Transient && (c != store.Changed || refresh == nil) {
			return fmt.Errorf("fetch %q, attempt %d: %w", key, n, err)
		}
		w.Log.WithError(err).WithField("key", key).WithField("attempt", n).Warn("Fetching failed; it is retried")
		if err := store.Wait(ctx, store.BackoffDelay(n, rand.Float64())); err != nil {
			return err
		}
		if c == store.Changed {
			if err := refresh(ctx); err != nil && store.Classify(err) != store.Transient {
				return fmt.Errorf("check %q: %w", key, err)
			}
		}
	}
}

// refresh updates o to the object's current state.
func (w *worker) refresh(ctx context.Context, o *store.Object) error {
	ctx, _, stop := store.WatchStall(ctx, w.Stall)
	defer stop()
	now, _, err := w.Store.Stat(ctx, o.Key, o.Version)
	if err != nil {
		return store.Cause(ctx, err)
	}
	w.progress.bytesTotal.Add(now.Size - o.Size)
	o.Size, o.ETag, o.Modified = now.Size, now.ETag, now.Modified
	return nil
}

// whole receives an object into a temporary file and verifies it.
func (w *worker) whole(ctx context.Context, o store.Object) (f finished, err error) {
	ctx, watchdog, stop := store.WatchStall(ctx, w.Stall)
	defer stop()
	stream, err := w.Store.Open(ctx, o, store.Span{Offset: 0, Length: o.Size})
	if err != nil {
		return finished{}, store.Cause(ctx, err)
	}
	defer func() { _ = stream.Body.Close() }()
	if stream.Size != o.Size {
		return finished{}, fmt.Errorf("%w: it has %d bytes, and had %d when it was listed", store.ErrChanged, stream.Size, o.Size)
	}
	r := newReceiver(w.chooseCheck(stream.Sums, o.ETag))
	temp := w.tempName()
	watchdog.Pause() // the watchdog is for the source, not for the disk
	file, direct, err := w.open(temp, o.Size, r.check)
	watchdog.Reset()
	if err != nil {
		return finished{}, err
	}
	defer func() {
		if direct != nil {
			_ = direct.Close() // no write is pending
		}
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			_ = w.dest.Tmp.Remove(temp)
			w.arrived(-r.size)
		}
	}()
	if err := w.receive(ctx, watchdog, stream.Body, store.Span{Offset: 0, Length: o.Size}, r, func(data []byte, at int64) error {
		return destination.WriteAt(file, direct, data, at)
	}); err != nil {
		return finished{}, err
	}
	if err := w.readEOF(ctx, stream.Body); err != nil {
		return finished{}, err
	}
	watchdog.Pause() // the object is complete, and further requests have watchdogs of their own
	return w.verifySmall(ctx, o, r, file, temp)
}

// directLimit is the size in bytes from which a direct write, which waits for the disk, is worthwhile.
const directLimit = store.MiB

// open creates the temporary file of a whole object.
func (w *worker) open(temp string, size int64, c store.Check) (file, direct *os.File, err error) {
	if size < directLimit {
		file, err = w.dest.Create(temp, 0)
		return file, nil, err
	}
	room := size
	if size <= int64(len(w.buf)) {
		room = 0 // not preallocated: a full disk is noticed soon enough, with less work for the file system
	}
	if file, err = w.dest.Create(temp, room); err == nil && c.Kind != store.CheckComposite {
		direct = w.dest.OpenDirect(temp)
	}
	return file, direct, err
}

// receive reads a span into the worker's buffer, portion by portion, and passes each portion to the
// receiver and to write. If the buffer is large enough for the span, it holds all of it at the end. The
// watchdog does not count waits for bandwidth and for the disk, which the source does not cause.
func (w *worker) receive(ctx context.Context, watchdog *store.Watchdog, body io.Reader, part store.Span, r *receiver, write func(data []byte, at int64) error) error {
	portion := w.bandwidth.portion(int64(len(w.buf)))
	for r.size < part.Length {
		from := r.size
		if part.Length > int64(len(w.buf)) {
			from = 0
		}
		data := w.buf[from : from+min(portion, part.Length-r.size)]
		watchdog.Pause()
		if err := w.bandwidth.wait(ctx, int64(len(data))); err != nil {
			return err
		}
		watchdog.Reset()
		for n := 0; n < len(data); {
			m, err := body.Read(data[n:])
			n += m
			watchdog.Seen(int64(m))
			if errors.Is(err, io.EOF) && n < len(data) {
				err = fmt.Errorf("%w after %d of %d bytes", io.ErrUnexpectedEOF, r.size+int64(n), part.Length)
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return store.Cause(ctx, err)
			}
		}
		at := part.Offset + r.size
		watchdog.Pause()
		r.add(data)
		w.arrived(int64(len(data)))
		if err := write(data, at); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		watchdog.Reset()
	}
	return nil
}

// readEOF reads the end of a body. It must be reached: a source such as file:// reports there that the
// object has changed meanwhile, and a connection is reused only then.
func (w *worker) readEOF(ctx context.Context, body io.Reader) error {
	n, err := body.Read(w.buf[:1])
	if n > 0 {
		return fmt.Errorf("%w: more bytes arrived than its size", store.ErrChanged)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return store.Cause(ctx, err)
	}
	return nil
}

// verifySmall checks a received object, notes it in the journal, and returns it with its manifest entry.
func (w *worker) verifySmall(ctx context.Context, o store.Object, r *receiver, file io.ReaderAt, temp string) (finished, error) {
	c := r.check
	var err error
	switch {
	case r.hash != nil:
		err = c.Verify(r.hash.Sum(nil))
	case c.Kind == store.CheckComposite:
		var known bool
		if known, err = c.VerifyComposite(ctx, file, o.Size, w.buf, w.partsOf(o)); err == nil && !known {
			c = store.Check{Kind: store.CheckSize}
		}
	}
	if err == nil || errors.Is(err, store.ErrChecksum) {
		c, err = w.resolveMismatch(o, c, strconv.FormatUint(r.crc(), 16), err, func() error { return w.checkOnDisk(ctx, file, o.Size, r.crc64.Sum(nil)) })
	}
	if err != nil {
		return finished{}, err
	}
	if err := w.journal.write(noteOf(o, temp, store.Span{Offset: 0, Length: o.Size}, r.crc(), c)); err != nil {
		return finished{}, err
	}
	return finishedFile(o, c, r.crc64.Sum(nil), temp), nil
}

// partsOf returns a function that asks the store for the sizes of an object's parts.
func (w *worker) partsOf(o store.Object) store.AskParts {
	return func(ctx context.Context, n int) ([]int64, error) {
		sizes, err := w.Store.Parts(ctx, o, n)
		if err != nil {
			return nil, fmt.Errorf("ask for the parts: %w", err)
		}
		return sizes, nil
	}
}

// receiver hashes the received bytes for the object's check and for the journal.
type receiver struct {
	check store.Check
	hash  hash.Hash
	crc64 hash.Hash64
	size  int64
}

func newReceiver(c store.Check) *receiver {
	r := &receiver{check: c, hash: c.Hasher()}
	if own, ok := r.hash.(hash.Hash64); ok && c.Kind == store.CheckCRC64 {
		r.crc64 = own
	} else {
		r.crc64 = store.NewCRC64()
	}
	return r
}

func (r *receiver) add(data []byte) {
	_, _ = r.crc64.Write(data)
	if r.hash != nil && r.hash != hash.Hash(r.crc64) {
		_, _ = r.hash.Write(data)
	}
	r.size += int64(len(data))
}

func (r *receiver) crc() uint64 { return r.crc64.Sum64() }

func noteOf(o store.Object, temp string, part store.Span, crc uint64, c store.Check) journalNote {
	return journalNote{Path: o.Path, Size: o.Size, ETag: o.ETag, Version: o.Version, Modified: o.Modified,
		Temp: temp, Span: part, CRC64: crc, Check: c.Kind, Sum: c.Want, ETagMismatch: c.ETagMismatch}
}

func finishedFile(o store.Object, c store.Check, crc64 []byte, temp string) finished {
	return finished{object: o, temp: temp, entry: Entry{
		Path: o.Path, Bytes: o.Size, ETag: o.ETag, VersionID: o.Version, Modified: o.Modified, Check: c.Kind, Checksum: c.Want,
		CRC64: store.Encode(crc64), ETagMismatch: c.ETagMismatch,
	}}
}

// recoverFile returns a small file that an earlier run has received and verified, but not entered into the
// manifest. The file is in its temporary file, or already under its name. Its bytes must still have the
// CRC noted when they arrived.
func (w *worker) recoverFile(o store.Object) (finished, bool) {
	r := w.leftovers[o.Path].of(o)
	if r == nil || r.notes[0].Span != (store.Span{Offset: 0, Length: o.Size}) || r.notes[0].Check == "" || !w.trusts(r.notes[0].Check) {
		return finished{}, false
	}
	n := r.notes[0]
	f := finishedFile(o, store.Check{Kind: n.Check, Want: n.Sum, ETagMismatch: n.ETagMismatch}, n.crc(), r.temp)
	file, err := w.dest.Reopen(r.temp)
	if err != nil {
		f.temp = ""
		if file, err = w.dest.OpenFile(o.Path); err != nil {
			return finished{}, false
		}
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || info.Size() != o.Size || !w.intact(file, n) {
		return finished{}, false
	}
	return f, true
}

// intact reports whether the bytes of n have its CRC.
func (w *worker) intact(file io.ReaderAt, n journalNote) bool {
	is, err := n.isIn(context.Background(), file, w.buf)
	return err == nil && is
}
