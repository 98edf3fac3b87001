package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// What is required of an object's checksum.
const (
	// ChecksumRequired: an object is fetched only if its source gives a checksum of its
	// content, and it matches.
	ChecksumRequired = "required"
	// ChecksumIfPresent: the strongest that the source gives has to match. An ETag is none
	// if it looks like an MD5 and the same content comes twice that does not match it.
	ChecksumIfPresent = "ifPresent"
	// ChecksumNone: sizes alone are compared.
	ChecksumNone = "none"
)

func checkChecksum(mode string) error {
	if slices.Contains([]string{"", ChecksumRequired, ChecksumIfPresent, ChecksumNone}, mode) {
		return nil
	}
	return fmt.Errorf("checksum %q is not known; it is %s, %s or %s", mode, ChecksumRequired, ChecksumIfPresent, ChecksumNone)
}

// choose is how an object is verified.
func (r *run) choose(sums store.Sums, etag string) store.Check {
	if r.Checksum == ChecksumNone {
		return store.Check{Kind: store.CheckSize}
	}
	return store.ChooseCheck(sums, etag)
}

// trusts reports whether a file need not be fetched again that an earlier run has verified by
// a check: that may not have required a checksum.
func (c Config) trusts(check string) bool {
	return c.Checksum != ChecksumRequired || check != "" && check != store.CheckSize
}

// judge is the check that an object has passed, by what came of it: content names that
// content. A mismatch that repeats with the same content is no fault of the way here, and
// is one of the source if kept says that what is on disk is what came.
func (r *run) judge(o store.Object, c store.Check, content string, err error, kept func() error) (store.Check, error) {
	if err == nil {
		if r.Checksum == ChecksumRequired && c.Kind == store.CheckSize {
			return c, fmt.Errorf("%w: it gives none, and one is required", store.ErrWrongSum)
		}
		return c, nil
	}
	content = o.ETag + " " + content
	r.mu.Lock()
	repeated := r.doubted[o.Path] == content
	if r.doubted == nil {
		r.doubted = map[string]string{}
	}
	r.doubted[o.Path] = content
	r.mu.Unlock()
	// A source one of whose ETags is a hash has no others.
	hashes := r.progress.anyVerified(store.CheckMD5) || r.progress.anyVerified(store.CheckComposite)
	if !repeated {
		return c, err
	}
	if ours := kept(); ours != nil {
		return c, fmt.Errorf("%w: %w", ours, err)
	}
	if r.Checksum != ChecksumRequired && !hashes && !c.Told && (c.Kind == store.CheckMD5 || c.Kind == store.CheckComposite) {
		r.Log.WithField("key", o.Key).Warn("The ETag is no hash of the content; the size alone is compared")
		r.mu.Lock()
		r.unsound++
		r.progress.noteLast("files have an ETag that looks like a hash and is none of their content, so their size alone was compared", r.unsound)
		r.mu.Unlock()
		return store.Check{Kind: store.CheckSize}, nil
	}
	return c, fmt.Errorf("%w: the same content came twice (--checksum=none takes it): %w", store.ErrWrongSum, err)
}

// errDisk: a file does not read as it was written.
var errDisk = errors.New("the file on disk is not what was received; look at the node's disk")

// isKept returns an error if the bytes of a file do not have the CRC of those received.
func (w *worker) isKept(ctx context.Context, file io.ReaderAt, size int64, want []byte) error {
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, io.NewSectionReader(file, 0, size), w.buf); err != nil {
		return fmt.Errorf("read what was received: %w", err)
	}
	if !bytes.Equal(crc.Sum(nil), want) {
		return errDisk
	}
	return nil
}
