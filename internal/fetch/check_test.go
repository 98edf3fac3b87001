package fetch

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// randomBytes are the same for the same seed.
func randomBytes(seed uint64, n int64) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func TestChooseCheck(t *testing.T) {
	const simple = "0123456789abcdef0123456789abcdef"
	tests := map[string]struct {
		sums Sums
		etag string
		kind string
	}{
		"crc64 first":       {Sums{CRC64NVME: "a", SHA256: "b"}, simple, checkCRC64},
		"crc32c":            {Sums{CRC32C: "a", CRC32: "b"}, simple, checkCRC32C},
		"crc32":             {Sums{CRC32: "a", SHA1: "b"}, simple, checkCRC32},
		"sha256":            {Sums{SHA256: "a", SHA1: "b"}, simple, checkSHA256},
		"sha1":              {Sums{SHA1: "b"}, simple, checkSHA1},
		"md5":               {Sums{}, simple, checkMD5},
		"encrypted":         {Sums{Opaque: true}, simple, checkSize},
		"encrypted, crc":    {Sums{Opaque: true, CRC64NVME: "a"}, simple, checkCRC64},
		"composite":         {Sums{}, simple + "-12", checkComposite},
		"opaque composite":  {Sums{Opaque: true}, simple + "-12", checkSize},
		"no parts":          {Sums{}, simple + "-0", checkSize},
		"something else":    {Sums{}, "W/abc", checkSize},
		"none":              {Sums{}, "", checkSize},
		"upper case is not": {Sums{}, "0123456789ABCDEF0123456789ABCDEF", checkSize},
	}
	for name, test := range tests {
		c := chooseCheck(test.sums, test.etag)
		require.Equal(t, test.kind, c.kind, name)
	}
}

func TestCombineIsTheSumOfTheWhole(t *testing.T) {
	data := randomBytes(1, 3_000_001)
	for _, kind := range []string{checkCRC64, checkCRC32C, checkCRC32} {
		h := types[kind].Hasher()
		h.Write(data)
		c := check{kind: kind, want: encode(h.Sum(nil))}
		var sums []sumOf
		for _, part := range []span{{0, 1}, {1, 999_999}, {1_000_000, 2_000_001}} {
			h := types[kind].Hasher()
			h.Write(data[part.Offset:part.end()])
			sums = append(sums, sumOf{part, h.Sum(nil)})
		}
		require.NoError(t, c.combine(sums), kind)
		sums[1].sum[0] ^= 1
		require.ErrorIs(t, c.combine(sums), errChecksum, kind)
	}
}

// compositeOf is the ETag of an upload in parts of these sizes, of which the last is
// repeated; computed without the code under test.
func compositeOf(data []byte, parts ...int64) string {
	var sums []byte
	n := 0
	for at := int64(0); at < int64(len(data)); n++ {
		end := min(at+parts[min(n, len(parts)-1)], int64(len(data)))
		sum := md5.Sum(data[at:end])
		sums, at = append(sums, sum[:]...), end
	}
	whole := md5.Sum(sums)
	return fmt.Sprintf("%s-%d", hex.EncodeToString(whole[:]), n)
}

// inParts tells of parts of these sizes, or fails.
func inParts(err error, sizes ...int64) askParts {
	return func(context.Context, int) ([]int64, error) { return sizes, err }
}

func TestVerifyComposite(t *testing.T) {
	data := randomBytes(2, 21*mib)
	buf := make([]byte, 64*kib)
	verify := func(etag string, told int64) (bool, error) {
		c := chooseCheck(Sums{PartSize: told}, etag)
		return c.verifyComposite(t.Context(), bytes.NewReader(data), int64(len(data)), buf, inParts(nil))
	}
	for _, part := range []int64{5 * mib, 8 * mib, 10 * mib, 16 * mib, 7 * mib, 100 * mib} {
		known, err := verify(compositeOf(data, part), 0)
		require.NoError(t, err)
		require.True(t, known, "%d", part)
	}
	odd := compositeOf(data, 6*mib+4321)
	known, err := verify(odd, 6*mib+4321)
	require.NoError(t, err)
	require.True(t, known, "told")
	known, err = verify(odd, 0)
	require.NoError(t, err)
	require.False(t, known, "a part size that cannot be guessed proves nothing")

	wrong := "00000000000000000000000000000000-3"
	known, err = verify(wrong, 0)
	require.NoError(t, err)
	require.False(t, known)
	_, err = verify(wrong, 8*mib)
	require.ErrorIs(t, err, errChecksum, "told part size")
	_, err = verify("00000000000000000000000000000000-1", 0)
	require.ErrorIs(t, err, errChecksum, "one part is no guess")
}

// Where no part size fits, the sizes of all parts prove it either way.
func TestVerifyCompositeOfUnequalParts(t *testing.T) {
	data := randomBytes(2, 21*mib)
	sizes := []int64{5 * mib, 7 * mib, 9 * mib}
	wrong := "00000000000000000000000000000000-3"
	errAway := errors.New("the server is away")
	for name, test := range map[string]struct {
		etag  string
		told  int64
		ask   askParts
		known bool
		err   error
	}{
		"match":                       {etag: compositeOf(data, sizes...), ask: inParts(nil, sizes...), known: true},
		"match, though one was told":  {etag: compositeOf(data, sizes...), told: 8 * mib, ask: inParts(nil, sizes...), known: true},
		"altered":                     {etag: wrong, ask: inParts(nil, sizes...), err: errChecksum},
		"of another sum":              {etag: wrong, ask: inParts(nil, 1, 2, 3)},
		"of another sum, one is told": {etag: wrong, told: 8 * mib, ask: inParts(nil, 1, 2, 3), err: errChecksum},
		"too few":                     {etag: wrong, ask: inParts(nil, 10*mib, 11*mib)},
		"nobody answers":              {etag: wrong, ask: inParts(errAway), err: errAway},
		"nobody needs to":             {etag: compositeOf(data, 8*mib), ask: inParts(errAway), known: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := chooseCheck(Sums{PartSize: test.told}, test.etag)
			known, err := c.verifyComposite(t.Context(), bytes.NewReader(data), int64(len(data)), make([]byte, 64*kib), test.ask)
			require.ErrorIs(t, err, test.err)
			if err == nil {
				require.Equal(t, test.known, known)
			}
		})
	}
}

func TestGuessParts(t *testing.T) {
	require.Equal(t, []int64{100}, guessParts(100, 1))
	for _, part := range []int64{5 * mib, 8 * mib, 16 * mib, 64 * mib, 100 * mib} {
		for _, n := range []int{2, 3, 10, 1000} {
			size := part*int64(n) - 1
			guesses := guessParts(size, n)
			require.Contains(t, guesses, part, "%d of %d", n, part)
			require.LessOrEqual(t, len(guesses), mostGuesses)
			for _, g := range guesses {
				require.Equal(t, int64(n), (size+g-1)/g)
			}
		}
	}
}
