package fetch

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

// usualParts are the part sizes that upload programs use, in bytes.
var usualParts = []int64{
	8 * mib, 5 * mib, 16 * mib, 64 * mib, 10 * mib, 15 * mib, 32 * mib, 50 * mib, 100 * mib, 128 * mib, 256 * mib,
	512 * mib, gib, 5_000_000, 8_000_000, 10_000_000, 16_000_000, 50_000_000, 64_000_000, 100_000_000,
}

// mostGuesses bounds how often a file is hashed in search of its part size.
const mostGuesses = 8

// guessParts are the part sizes with which an object of size bytes may have been
// uploaded in n parts, likely ones first: all parts but the last have the same.
func guessParts(size int64, n int) []int64 {
	if n == 1 {
		return []int64{max(size, 1)}
	}
	parts := int64(n)
	fits := func(p int64) bool { return p > 0 && p*(parts-1) < size && size <= p*parts }
	var guesses []int64
	add := func(p int64) {
		if fits(p) && !slices.Contains(guesses, p) && len(guesses) < mostGuesses {
			guesses = append(guesses, p)
		}
	}
	for _, p := range usualParts {
		add(p)
	}
	least := (size + parts - 1) / parts
	add((least + mib - 1) / mib * mib)
	add(least)
	return guesses
}

// verifyComposite hashes a file in parts, with the part size that the source
// told, or with those that it may be. known is false where none of the guesses
// fits: then nothing was proved either way.
func (c check) verifyComposite(ctx context.Context, file io.ReaderAt, size int64, buf []byte) (known bool, err error) {
	guesses := guessParts(size, c.parts)
	told := c.partSize > 0 && c.partSize*int64(c.parts-1) < size && size <= c.partSize*int64(c.parts)
	if told {
		guesses = []int64{c.partSize}
	}
	for _, guess := range guesses {
		etag, err := hashParts(ctx, file, size, guess, buf)
		if err != nil {
			return false, err
		}
		if etag == c.want {
			return true, nil
		}
	}
	if told || c.parts == 1 {
		return true, fmt.Errorf("%w: the ETag of %d parts of %d bytes is not %s", errChecksum, c.parts, guesses[0], c.want)
	}
	return false, nil
}

// hashParts is the ETag of a file that was uploaded in parts of one size.
func hashParts(ctx context.Context, file io.ReaderAt, size, part int64, buf []byte) (string, error) {
	whole := md5.New()
	n := 0
	for offset := int64(0); offset < size || n == 0; offset += part {
		h := md5.New()
		section := io.NewSectionReader(file, offset, min(part, size-offset))
		if err := hashInto(ctx, h, section, buf); err != nil {
			return "", err
		}
		whole.Write(h.Sum(nil))
		n++
	}
	return fmt.Sprintf("%s-%d", hex.EncodeToString(whole.Sum(nil)), n), nil
}

// hashInto writes all of in to out and ends early with ctx.
func hashInto(ctx context.Context, out io.Writer, in io.Reader, buf []byte) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := in.Read(buf)
		_, _ = out.Write(buf[:n]) // hashes do not fail
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
