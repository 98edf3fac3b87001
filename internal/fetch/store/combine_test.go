package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store/storetest"
)

func TestCombineIsTheSumOfTheWhole(t *testing.T) {
	data := storetest.RandomBytes(1, 3_000_001)
	for name, parts := range map[string][]Span{
		"few":          {{0, 1}, {1, 999_999}, {1_000_000, 2_000_001}},
		"one":          {{0, 3_000_001}},
		"many":         cut(3_000_001, 10_000),
		"of two sizes": cut(3_000_001, 10_000, 20_011),
		"empty ones":   cut(3_000_001, 10_000, 0),
	} {
		for _, kind := range []string{CheckCRC64, checkCRC32C, checkCRC32} {
			h := types[kind].Hasher()
			h.Write(data)
			c := Check{Kind: kind, Want: Encode(h.Sum(nil))}
			var sums []SumOf
			for _, part := range parts {
				h := types[kind].Hasher()
				h.Write(data[part.Offset:part.End()])
				sums = append(sums, SumOf{part, h.Sum(nil)})
			}
			require.NoError(t, c.Combine(sums), "%s, %s", name, kind)
			for _, i := range []int{0, len(sums) / 2, len(sums) - 1} {
				sums[i].Sum[3] ^= 1
				require.ErrorIs(t, c.Combine(sums), ErrChecksum, "%s, %s, %d", name, kind, i)
				sums[i].Sum[3] ^= 1
			}
		}
	}
}

// cut cuts size bytes into spans that have these lengths in turn.
func cut(size int64, lengths ...int64) (out []Span) {
	for at, i := int64(0), 0; at < size; i++ {
		length := min(lengths[i%len(lengths)], size-at)
		out = append(out, Span{at, length})
		at += length
	}
	return out
}

func BenchmarkCombine(b *testing.B) {
	c := Check{Kind: CheckCRC64}
	var sums []SumOf
	for i, part := range cut(4096*MiB, MiB) {
		sums = append(sums, SumOf{part, []byte{1, 2, 3, 4, 5, 6, byte(i >> 8), byte(i)}})
	}
	for b.Loop() {
		_, err := c.Combined(sums)
		require.NoError(b, err)
	}
}
