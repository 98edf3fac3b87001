package fetch

import (
	"bytes"
	"crypto/md5"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

// In whatever order pieces come, the hash is that of the whole, and nothing is read before it
// is there.
func TestFollower(t *testing.T) {
	want := storetest.RandomBytes(7, 5*followBuffer+17)
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		file := make(arriving, len(want))
		pieces := piecesOf(int64(len(want)), random)
		random.Shuffle(len(pieces), func(i, j int) { pieces[i], pieces[j] = pieces[j], pieces[i] })
		resumed := random.IntN(len(pieces) + 1)
		for _, s := range pieces[:resumed] {
			copy(file[s.Offset:s.End()], want[s.Offset:])
		}
		f := follow(t.Context(), md5.New(), file, int64(len(want)), pieces[:resumed])
		for _, s := range pieces[resumed:] {
			copy(file[s.Offset:s.End()], want[s.Offset:])
			f.add(s)
		}
		sum, err := f.sum(t.Context())
		require.NoError(t, err)
		require.Equal(t, md5.Sum(want), [16]byte(sum), "seed %d", seed)
		f.stop()
	}
}

// arriving is a file that is written while it is read.
type arriving []byte

func (a arriving) ReadAt(p []byte, at int64) (int, error) { return copy(p, a[at:]), nil }

func piecesOf(size int64, random *rand.Rand) (out []store.Span) {
	for at := int64(0); at < size; {
		length := min(1+random.Int64N(followBuffer), size-at)
		out = append(out, store.Span{Offset: at, Length: length})
		at += length
	}
	return out
}

func TestFollowerThatEndsEarly(t *testing.T) {
	f := follow(t.Context(), md5.New(), make(arriving, 100), 100, []store.Span{{Offset: 10, Length: 90}})
	f.stop() // what is missing never comes
	_, err := f.sum(t.Context())
	require.ErrorIs(t, err, errEnded)

	broken := errors.New("the disk is broken")
	f = follow(t.Context(), md5.New(), readerAt{iotest.ErrReader(broken)}, 100, []store.Span{{Offset: 0, Length: 100}})
	_, err = f.sum(t.Context())
	require.ErrorIs(t, err, broken)
	f.stop()

	f = follow(t.Context(), md5.New(), bytes.NewReader(nil), 0, nil)
	sum, err := f.sum(t.Context())
	require.NoError(t, err)
	require.Equal(t, md5.Sum(nil), [16]byte(sum))
}

type readerAt struct {
	r interface{ Read([]byte) (int, error) }
}

func (r readerAt) ReadAt(p []byte, _ int64) (int, error) { return r.r.Read(p) }
