package store

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Units of bytes.
const (
	KiB = int64(1) << 10
	MiB = int64(1) << 20
	GiB = int64(1) << 30
)

// usualParts are the part sizes that upload programs use, in bytes.
var usualParts = []int64{
	8 * MiB, 5 * MiB, 16 * MiB, 64 * MiB, 10 * MiB, 15 * MiB, 32 * MiB, 50 * MiB, 100 * MiB, 128 * MiB, 256 * MiB,
	512 * MiB, GiB, 5_000_000, 8_000_000, 10_000_000, 16_000_000, 50_000_000, 64_000_000, 100_000_000,
}

// maxGuesses bounds how often a file is hashed in search of its part size.
const maxGuesses = 8

// guessParts returns the part sizes with which an object of size bytes may have been uploaded in n
// parts, likely ones first. All parts but the last have the same size.
func guessParts(size int64, n int) []int64 {
	if n == 1 {
		return []int64{max(size, 1)}
	}
	parts := int64(n)
	fits := func(p int64) bool { return p > 0 && p*(parts-1) < size && size <= p*parts }
	var guesses []int64
	add := func(p int64) {
		if fits(p) && !slices.Contains(guesses, p) && len(guesses) < maxGuesses {
			guesses = append(guesses, p)
		}
	}
	for _, p := range usualParts {
		add(p)
	}
	least := (size + parts - 1) / parts
	add((least + MiB - 1) / MiB * MiB)
	add(least)
	return guesses
}

// AskParts returns the sizes of an object's n parts; nil if they are unknown.
type AskParts func(ctx context.Context, n int) ([]int64, error)

// VerifyComposite hashes a file in parts: with the part size from the source, or with likely ones, and
// if none fits, with the sizes of all parts from ask, if it knows them. known is false if the file
// could be neither confirmed nor refuted.
func (c Check) VerifyComposite(ctx context.Context, file io.ReaderAt, size int64, buf []byte, ask AskParts) (known bool, err error) {
	guesses := guessParts(size, c.parts)
	exact := c.partSize > 0 && c.partSize*int64(c.parts-1) < size && size <= c.partSize*int64(c.parts)
	if exact {
		guesses = []int64{c.partSize}
	}
	for _, guess := range guesses {
		if fits, err := c.fits(ctx, file, EqualParts(size, guess), buf); fits || err != nil {
			return fits, err
		}
	}
	var sizes []int64
	if c.parts > 1 { // the size of a single part is known
		if sizes, err = ask(ctx, c.parts); err != nil {
			return false, err
		}
	}
	if len(sizes) == c.parts && Total(sizes) == size {
		exact = true
		if fits, err := c.fits(ctx, file, sizes, buf); fits || err != nil {
			return fits, err
		}
	}
	if exact || c.parts == 1 {
		return true, fmt.Errorf("%w: the ETag of its %d parts is not %s", ErrChecksum, c.parts, c.Want)
	}
	return false, nil
}

// fits reports whether a file that was uploaded in parts of these sizes has the ETag.
func (c Check) fits(ctx context.Context, file io.ReaderAt, sizes []int64, buf []byte) (bool, error) {
	etag, err := hashParts(ctx, file, sizes, buf)
	return etag == c.Want, err
}

// EqualParts returns the part sizes of size bytes: all but the last are equal.
func EqualParts(size, part int64) []int64 {
	sizes := []int64{min(part, size)}
	for left := size - part; left > 0; left -= part {
		sizes = append(sizes, min(part, left))
	}
	return sizes
}

// Total returns the sum of sizes.
func Total(sizes []int64) (total int64) {
	for _, size := range sizes {
		total += size
	}
	return total
}

// hashParts returns the ETag of a file that was uploaded in parts of these sizes.
func hashParts(ctx context.Context, file io.ReaderAt, sizes []int64, buf []byte) (string, error) {
	whole := md5.New()
	offset := int64(0)
	for _, size := range sizes {
		h := md5.New()
		if err := HashInto(ctx, h, io.NewSectionReader(file, offset, size), buf); err != nil {
			return "", err
		}
		whole.Write(h.Sum(nil))
		offset += size
	}
	return fmt.Sprintf("%s-%d", hex.EncodeToString(whole.Sum(nil)), len(sizes)), nil
}

// HashInto writes all of in to out and ends early with ctx.
func HashInto(ctx context.Context, out io.Writer, in io.Reader, buf []byte) error {
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
