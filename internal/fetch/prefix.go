package fetch

import (
	"context"
	"hash"
	"io"
	"sync"
)

// prefix hashes a file from its start while its spans come in any order, for checks
// that cannot be put together from ranges. Workers do it in turns, each when it has
// brought a range: what has just come is still in the page cache, and the object
// need not be read as a whole once all of it is there.
type prefix struct {
	file io.ReaderAt
	hash hash.Hash // of the one that is busy

	mu     sync.Mutex
	ends   map[int64]int64 // of the spans behind a gap, by their offsets
	there  int64           // the bytes before the first gap
	hashed int64           // those of them that were hashed
	busy   bool            // somebody hashes
}

func newPrefix(file io.ReaderAt, h hash.Hash, have []span) *prefix {
	p := &prefix{file: file, hash: h, ends: make(map[int64]int64)}
	for _, s := range have {
		p.add(s)
	}
	return p
}

// add tells of a span that is there, and stays as it is.
func (p *prefix) add(s span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[s.Offset] = s.end()
	for end, found := p.ends[p.there]; found; end, found = p.ends[p.there] {
		delete(p.ends, p.there)
		p.there = end
	}
}

// advance hashes what lies before the first gap, unless somebody else is at it. After
// an error nothing of the hash can be used.
func (p *prefix) advance(ctx context.Context, buf []byte) error {
	for {
		next := p.begin()
		if next.Length == 0 {
			return nil
		}
		if err := hashInto(ctx, p.hash, newSection(p.file, next), buf); err != nil {
			return err
		}
		p.mu.Lock()
		p.hashed, p.busy = next.end(), false
		p.mu.Unlock()
	}
}

// begin takes what is to be hashed now; nothing where somebody else has.
func (p *prefix) begin() span {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		return span{}
	}
	next := span{p.hashed, p.there - p.hashed}
	p.busy = next.Length > 0
	return next
}

// sum is the hash of the whole file, of which every span must have been added and
// nobody be at work any more.
func (p *prefix) sum(ctx context.Context, buf []byte) ([]byte, error) {
	err := p.advance(ctx, buf)
	return p.hash.Sum(nil), err
}
