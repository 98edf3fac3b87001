package fetch

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// orderedHasher hashes a large object in order while its ranges arrive in any order, so that the hash is
// known soon after the last byte. It hashes pieces from memory: written pieces are kept until all
// before them have arrived, as far as there is room. Other pieces, and those that an earlier run has
// left, it reads from the file.
type orderedHasher struct {
	hash hash.Hash
	file io.ReaderAt
	size int64
	pool *pool
	done chan struct{} // closed at the end, after err is set
	err  error
	// forget detaches the hasher from the context that ends it.
	forget func() bool

	mu     sync.Mutex
	moved  *sync.Cond
	hashed int64           // everything before this offset is hashed
	ahead  map[int64]piece // the pieces written and not hashed, by offset
	ended  bool
}

// piece is a written span up to end. data begins with its content; nil if only the file has it.
type piece struct {
	end  int64
	data []byte
}

// hashBuffer is how much is read from the file at a time: little enough to be in the processor's
// cache when it is hashed.
const hashBuffer = 256 * store.KiB

// memoryWait is how long a piece waits for room in memory before it is not kept: if a piece before
// it is late, all others would wait, too.
const memoryWait = time.Second

var errEnded = errors.New("the run ended before all was read")

// startOrderedHash starts with the spans that are already in the file. The hasher ends with the last byte, with
// ctx or with stop.
func startOrderedHash(ctx context.Context, h hash.Hash, file io.ReaderAt, size int64, have []store.Span, pool *pool) *orderedHasher {
	f := &orderedHasher{hash: h, file: file, size: size, pool: pool, done: make(chan struct{}), ahead: map[int64]piece{}}
	f.moved = sync.NewCond(&f.mu)
	for _, s := range have {
		f.ahead[s.Offset] = piece{end: s.End()}
	}
	f.forget = context.AfterFunc(ctx, f.end)
	go func() {
		defer close(f.done)
		f.err = f.run()
		f.end()
		f.drop()
	}()
	return f
}

// admit reports whether a piece at that offset can be kept in memory. It waits for memoryWait if
// the hash is far behind. The piece that is hashed next never waits, so the hash goes on.
func (f *orderedHasher) admit(at int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	room := func() bool { return at < f.hashed+f.pool.window() }
	if f.pool.window() == 0 || room() {
		return room() && !f.ended
	}
	late := false
	timer := time.AfterFunc(memoryWait, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		late = true
		f.moved.Broadcast()
	})
	defer timer.Stop()
	for !room() && !late && !f.ended {
		f.moved.Wait()
	}
	return room() && !f.ended
}

// add records that a span is written, and returns a buffer for the next one. If the span was admitted,
// the hasher may keep buf, which begins with its content. Spans do not overlap.
func (f *orderedHasher) add(s store.Span, buf []byte, admitted bool) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return buf
	}
	p := piece{end: s.End()}
	if admitted {
		if empty := f.pool.get(len(buf)); empty != nil {
			p.data, buf = buf, empty
		}
	}
	f.ahead[s.Offset] = p
	f.moved.Broadcast()
	return buf
}

// stop ends the hasher, and returns when it no longer reads.
func (f *orderedHasher) stop() {
	f.forget()
	f.end()
	<-f.done
}

func (f *orderedHasher) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.moved.Broadcast()
}

// drop returns the buffers of pieces that are not hashed to the pool.
func (f *orderedHasher) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.ahead {
		f.pool.put(p.data)
	}
	f.ahead = nil // add no longer adds pieces
}

// sum waits for the end, and returns the hash of the whole content.
func (f *orderedHasher) sum(ctx context.Context) ([]byte, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return f.hash.Sum(nil), f.err
}

func (f *orderedHasher) run() error {
	var buf []byte
	for at := int64(0); at < f.size; {
		p, ended := f.next(at)
		if ended {
			return errEnded
		}
		if p.data != nil {
			_, _ = f.hash.Write(p.data[:p.end-at]) // hashes do not fail
			f.pool.put(p.data)
		} else {
			if buf == nil {
				buf = make([]byte, min(hashBuffer, f.size))
			}
			if err := store.HashInto(context.Background(), f.hash, io.NewSectionReader(f.file, at, p.end-at), buf); err != nil {
				return fmt.Errorf("read what was received: %w", err)
			}
		}
		at = p.end
	}
	return nil
}

// next waits for the piece at offset hashed. All bytes before it are hashed.
func (f *orderedHasher) next(hashed int64) (p piece, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hashed = hashed
	f.moved.Broadcast()
	for {
		p, there := f.ahead[hashed]
		if there || f.ended {
			delete(f.ahead, hashed)
			return p, !there
		}
		f.moved.Wait()
	}
}
