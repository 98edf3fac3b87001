package fetch

import (
	"bytes"
	"crypto/md5"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever the order of the spans, and however many workers are at it at once, each
// byte is hashed once and in its place.
func TestPrefix(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0))
		data := randomBytes(seed, 100_000+random.Int64N(1000))
		parts := spansOf(random, int64(len(data)))
		have, coming := parts[:len(parts)/3], parts[len(parts)/3:]
		p := newPrefix(bytes.NewReader(data), md5.New(), have)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				buf := make([]byte, 777)
				for j := i; j < len(coming); j += 4 {
					p.add(coming[j])
					if err := p.advance(t.Context(), buf); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		sum, err := p.sum(t.Context(), make([]byte, 777))
		require.NoError(t, err)
		want := md5.Sum(data)
		require.Equal(t, want[:], sum, "seed %d", seed)
		require.Empty(t, p.ends)
	}
}

// spansOf cuts a size into spans, in any order.
func spansOf(random *rand.Rand, size int64) (out []span) {
	for at := int64(0); at < size; {
		length := min(1+random.Int64N(2000), size-at)
		out = append(out, span{at, length})
		at += length
	}
	random.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// unreadable is a file whose disk fails.
type unreadable struct{}

var errDisk = errors.New("input/output error")

func (unreadable) ReadAt([]byte, int64) (int, error) { return 0, errDisk }

func TestPrefixOfAFailingDisk(t *testing.T) {
	p := newPrefix(unreadable{}, md5.New(), []span{{0, 10}})
	_, err := p.sum(t.Context(), make([]byte, 5))
	require.ErrorIs(t, err, errDisk)
}
