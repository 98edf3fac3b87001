package store

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

func TestChooseCheck(t *testing.T) {
	const simple = "0123456789abcdef0123456789abcdef"
	tests := map[string]struct {
		sums Sums
		etag string
		kind string
	}{
		"crc64 first":       {Sums{CRC64NVME: "a", SHA256: "b"}, simple, CheckCRC64},
		"crc32c":            {Sums{CRC32C: "a", CRC32: "b"}, simple, checkCRC32C},
		"crc32":             {Sums{CRC32: "a", SHA1: "b"}, simple, checkCRC32},
		"sha256":            {Sums{SHA256: "a", SHA1: "b"}, simple, CheckSHA256},
		"sha1":              {Sums{SHA1: "b"}, simple, checkSHA1},
		"md5":               {Sums{}, simple, CheckMD5},
		"encrypted":         {Sums{Opaque: true}, simple, CheckSize},
		"encrypted, crc":    {Sums{Opaque: true, CRC64NVME: "a"}, simple, CheckCRC64},
		"composite":         {Sums{}, simple + "-12", CheckComposite},
		"opaque composite":  {Sums{Opaque: true}, simple + "-12", CheckSize},
		"no parts":          {Sums{}, simple + "-0", CheckSize},
		"something else":    {Sums{}, "W/abc", CheckSize},
		"none":              {Sums{}, "", CheckSize},
		"upper case is not": {Sums{}, "0123456789ABCDEF0123456789ABCDEF", CheckSize},
	}
	for name, test := range tests {
		c := ChooseCheck(test.sums, test.etag)
		require.Equal(t, test.kind, c.Kind, name)
	}
}

// inParts returns these part sizes, or fails with err.
func inParts(err error, sizes ...int64) AskParts {
	return func(context.Context, int) ([]int64, error) { return sizes, err }
}

func TestVerifyComposite(t *testing.T) {
	data := storetest.RandomBytes(2, 21*MiB)
	buf := make([]byte, 64*KiB)
	verify := func(etag string, told int64) (bool, error) {
		c := ChooseCheck(Sums{PartSize: told}, etag)
		return c.VerifyComposite(t.Context(), bytes.NewReader(data), int64(len(data)), buf, inParts(nil))
	}
	for _, part := range []int64{5 * MiB, 8 * MiB, 10 * MiB, 16 * MiB, 7 * MiB, 100 * MiB} {
		known, err := verify(storetest.CompositeOf(data, part), 0)
		require.NoError(t, err)
		require.True(t, known, "%d", part)
	}
	odd := storetest.CompositeOf(data, 6*MiB+4321)
	known, err := verify(odd, 6*MiB+4321)
	require.NoError(t, err)
	require.True(t, known, "told")
	known, err = verify(odd, 0)
	require.NoError(t, err)
	require.False(t, known, "a part size that cannot be guessed proves nothing")

	wrong := "00000000000000000000000000000000-3"
	known, err = verify(wrong, 0)
	require.NoError(t, err)
	require.False(t, known)
	_, err = verify(wrong, 8*MiB)
	require.ErrorIs(t, err, ErrChecksum, "told part size")
	_, err = verify("00000000000000000000000000000000-1", 0)
	require.ErrorIs(t, err, ErrChecksum, "one part is no guess")
}

// If no single part size fits, the sizes of all parts decide.
func TestVerifyCompositeOfUnequalParts(t *testing.T) {
	data := storetest.RandomBytes(2, 21*MiB)
	sizes := []int64{5 * MiB, 7 * MiB, 9 * MiB}
	wrong := "00000000000000000000000000000000-3"
	errAway := errors.New("the server is away")
	for name, test := range map[string]struct {
		etag  string
		told  int64
		ask   AskParts
		known bool
		err   error
	}{
		"match":                       {etag: storetest.CompositeOf(data, sizes...), ask: inParts(nil, sizes...), known: true},
		"match, though one was told":  {etag: storetest.CompositeOf(data, sizes...), told: 8 * MiB, ask: inParts(nil, sizes...), known: true},
		"altered":                     {etag: wrong, ask: inParts(nil, sizes...), err: ErrChecksum},
		"of another sum":              {etag: wrong, ask: inParts(nil, 1, 2, 3)},
		"of another sum, one is told": {etag: wrong, told: 8 * MiB, ask: inParts(nil, 1, 2, 3), err: ErrChecksum},
		"too few":                     {etag: wrong, ask: inParts(nil, 10*MiB, 11*MiB)},
		"nobody answers":              {etag: wrong, ask: inParts(errAway), err: errAway},
		"nobody needs to":             {etag: storetest.CompositeOf(data, 8*MiB), ask: inParts(errAway), known: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := ChooseCheck(Sums{PartSize: test.told}, test.etag)
			known, err := c.VerifyComposite(t.Context(), bytes.NewReader(data), int64(len(data)), make([]byte, 64*KiB), test.ask)
			require.ErrorIs(t, err, test.err)
			if err == nil {
				require.Equal(t, test.known, known)
			}
		})
	}
}

func TestGuessParts(t *testing.T) {
	require.Equal(t, []int64{100}, guessParts(100, 1))
	for _, part := range []int64{5 * MiB, 8 * MiB, 16 * MiB, 64 * MiB, 100 * MiB} {
		for _, n := range []int{2, 3, 10, 1000} {
			size := part*int64(n) - 1
			guesses := guessParts(size, n)
			require.Contains(t, guesses, part, "%d of %d", n, part)
			require.LessOrEqual(t, len(guesses), maxGuesses)
			for _, g := range guesses {
				require.Equal(t, int64(n), (size+g-1)/g)
			}
		}
	}
}
