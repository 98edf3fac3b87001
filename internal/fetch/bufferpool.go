package fetch

import (
	"sync"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// pool bounds the memory in which all hashers keep pieces. A hasher that keeps a full buffer gets
// an empty one for it.
type pool struct {
	// step is the length of the ranges of objects that are hashed in order, and maxFull is how many
	// buffers may be full at the same time; 0 if no pieces are kept.
	step    int64
	maxFull int

	mu    sync.Mutex
	full  int
	empty [][]byte
}

// maxStep is the longest range of an object that is hashed in order: ranges received at the same time
// wait in memory until the ones before them have arrived.
const maxStep = 8 * store.MiB

// newPool returns a pool of the memory, in bytes, that the workers' buffers of this size leave. memory
// is as in buffers.
func newPool(memory int64, workers int, size int64) *pool {
	left := int64(workers) * (maxStep + pieceSize)
	if memory > 0 {
		left = min(left, memory-int64(workers)*size)
	}
	step := min(left/int64(workers)&^(pieceSize-1), maxStep)
	if size < pieceSize || step < pieceSize {
		return &pool{}
	}
	return &pool{step: step, maxFull: int(left / size)}
}

// window returns how far ahead of the hash a piece may be kept, in bytes.
func (p *pool) window() int64 { return int64(p.maxFull) * pieceSize }

// get returns an empty buffer in exchange for a full one of this size; nil if too many are full.
func (p *pool) get(size int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full >= p.maxFull {
		return nil
	}
	p.full++
	if last := len(p.empty) - 1; last >= 0 {
		buf := p.empty[last]
		p.empty = p.empty[:last]
		return buf
	}
	return destination.NewBuffer(int64(size))
}

// put returns a buffer that was full to the pool; nil is ignored.
func (p *pool) put(buf []byte) {
	if buf == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full--
	p.empty = append(p.empty, buf)
}

// maxRanges bounds how many ranges of an object wait in the queue.
const maxRanges = 16384

// stepOf returns the length of the ranges of an object of that size which is hashed in order; otherwise
// if no pieces are kept.
func (p *pool) stepOf(size, otherwise int64) int64 {
	if p.maxFull == 0 {
		return otherwise
	}
	return max(p.step, (size/maxRanges+pieceSize-1)/pieceSize*pieceSize)
}
