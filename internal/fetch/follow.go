package fetch

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// follower hashes a large object in order while its ranges arrive in any: it reads from the
// file what is there before the first gap. So the hash is known soon after the last byte, and
// what is read was just written, and comes from memory.
type follower struct {
	hash hash.Hash
	file io.ReaderAt
	size int64
	done chan struct{} // closed at the end, with err
	err  error
	// forget takes the follower off the context with which it ends.
	forget func() bool

	mu    sync.Mutex
	moved *sync.Cond
	here  int64           // all before it is there
	ahead map[int64]int64 // spans behind a gap: their ends, by their offsets
	ended bool
}

// followBuffer is what is read at once: what is hashed next is in the processor's cache.
const followBuffer = 256 * store.KiB

var errEnded = errors.New("the run ended before all was read")

// follow begins with what is there already. The follower ends with the last byte, with ctx or
// with stop.
func follow(ctx context.Context, h hash.Hash, file io.ReaderAt, size int64, have []store.Span) *follower {
	f := &follower{hash: h, file: file, size: size, done: make(chan struct{}), ahead: map[int64]int64{}}
	f.moved = sync.NewCond(&f.mu)
	for _, s := range have {
		f.add(s)
	}
	f.forget = context.AfterFunc(ctx, f.end)
	go func() {
		defer close(f.done)
		f.err = f.run()
	}()
	return f
}

// add tells that a span is written. Spans do not overlap.
func (f *follower) add(s store.Span) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead[s.Offset] = s.End()
	for end, there := f.ahead[f.here]; there; end, there = f.ahead[f.here] {
		delete(f.ahead, f.here)
		f.here = end
	}
	f.moved.Signal()
}

// stop ends the follower, and returns when it does not read any more.
func (f *follower) stop() {
	f.forget()
	f.end()
	<-f.done
}

func (f *follower) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.moved.Signal()
}

// sum waits for the end, and returns the hash of all of it.
func (f *follower) sum(ctx context.Context) ([]byte, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return f.hash.Sum(nil), f.err
}

func (f *follower) run() error {
	buf := make([]byte, min(followBuffer, f.size))
	for at := int64(0); at < f.size; {
		here, ended := f.wait(at)
		if ended {
			return errEnded
		}
		data := buf[:min(int64(len(buf)), here-at)]
		if _, err := f.file.ReadAt(data, at); err != nil {
			return fmt.Errorf("read what was received: %w", err)
		}
		_, _ = f.hash.Write(data) // hashes do not fail
		at += int64(len(data))
	}
	return nil
}

// wait returns when there is more than what was read.
func (f *follower) wait(read int64) (here int64, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.here <= read && !f.ended {
		f.moved.Wait()
	}
	return f.here, f.ended
}
