package fetch

import (
	"bytes"
	"crypto/md5"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// Whatever the order in which pieces arrive, and whether they are in memory or only in the file, the
// hash is that of the whole content. No piece is read before it is written.
func TestFollower(t *testing.T) {
	want := storetest.RandomBytes(7, 5*hashBuffer+17)
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		pool := &pool{maxFull: 3 * random.IntN(2)}
		file := make(arriving, len(want))
		pieces := piecesOf(int64(len(want)), random)
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		resumed := random.IntN(len(pieces) + 1)
		for _, s := range pieces[:resumed] {
			copy(file[s.Offset:s.End()], want[s.Offset:])
		}
		f := startOrderedHash(t.Context(), md5.New(), file, int64(len(want)), pieces[:resumed], pool)
		buf := make([]byte, hashBuffer)
		for _, s := range pieces[resumed:] {
			admitted := f.admit(s.Offset)
			require.Equal(t, pool.maxFull > 0, admitted, "all of it is in the window")
			copy(file[s.Offset:s.End()], want[s.Offset:])
			copy(buf, want[s.Offset:s.End()])
			buf = f.add(s, buf, admitted && random.IntN(2) == 0)
		}
		sum, err := f.sum(t.Context())
		require.NoError(t, err)
		require.Equal(t, md5.Sum(want), [16]byte(sum), "seed %d", seed)
		f.stop()
		require.Zero(t, pool.full)
		require.LessOrEqual(t, len(pool.empty), pool.maxFull)
	}
}

// Pieces that arrive early are hashed from memory: the file of this test cannot be read. Only a bounded
// number is kept, and a piece that is too far ahead waits for the hash, for at most memoryWait.
func TestFollowerKeepsWhatCameAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := storetest.RandomBytes(8, 6*pieceSize)
		pool := &pool{maxFull: 3}
		f := startOrderedHash(t.Context(), md5.New(), readerAt{iotest.ErrReader(errors.New("it is read"))}, int64(len(want)), nil, pool)
		buf := make([]byte, pieceSize)
		add := func(i int) {
			t.Helper()
			part := store.Span{Offset: int64(i) * pieceSize, Length: pieceSize}
			require.True(t, f.admit(part.Offset), i)
			copy(buf, want[part.Offset:part.End()])
			was := &buf[0]
			buf = f.add(part, buf, true)
			require.NotSame(t, was, &buf[0], "it stays with the hasher")
		}
		add(2)
		add(1)
		began := time.Now()
		require.False(t, f.admit(3*pieceSize), "nothing is hashed yet")
		require.Equal(t, memoryWait, time.Since(began))
		admitted := make(chan bool)
		go func() { admitted <- f.admit(5 * pieceSize) }()
		synctest.Wait()
		add(0)
		require.True(t, <-admitted, "it waited for the hash")
		require.Equal(t, memoryWait, time.Since(began))
		for i := range 3 {
			add(5 - i)
		}
		sum, err := f.sum(t.Context())
		require.NoError(t, err)
		require.Equal(t, md5.Sum(want), [16]byte(sum))
		f.stop()
		require.Zero(t, pool.full)
		require.Len(t, pool.empty, 3)
		require.False(t, f.admit(0), "it has ended")
	})
}

// arriving is a file that is written while it is read.
type arriving []byte

func (a arriving) ReadAt(p []byte, at int64) (int, error) { return copy(p, a[at:]), nil }

func piecesOf(size int64, random *rand.Rand) (out []store.Span) {
	for at := int64(0); at < size; {
		length := min(1+random.Int64N(hashBuffer), size-at)
		out = append(out, store.Span{Offset: at, Length: length})
		at += length
	}
	return out
}

func TestFollowerThatEndsEarly(t *testing.T) {
	f := startOrderedHash(t.Context(), md5.New(), make(arriving, 100), 100, []store.Span{{Offset: 10, Length: 90}}, &pool{})
	f.stop() // the missing span never arrives
	_, err := f.sum(t.Context())
	require.ErrorIs(t, err, errEnded)

	broken := errors.New("the disk is broken")
	f = startOrderedHash(t.Context(), md5.New(), readerAt{iotest.ErrReader(broken)}, 100, []store.Span{{Offset: 0, Length: 100}}, &pool{})
	_, err = f.sum(t.Context())
	require.ErrorIs(t, err, broken)
	f.stop()

	f = startOrderedHash(t.Context(), md5.New(), bytes.NewReader(nil), 0, nil, &pool{})
	sum, err := f.sum(t.Context())
	require.NoError(t, err)
	require.Equal(t, md5.Sum(nil), [16]byte(sum))
}

type readerAt struct {
	r interface{ Read([]byte) (int, error) }
}

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return r.r.Read(p) }
