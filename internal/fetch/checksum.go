package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Requirements on the checksum of an object.
const (
	// ChecksumRequired: an object is fetched only if its source provides a checksum of its content, and
	// it matches.
	ChecksumRequired = "required"
	// ChecksumIfPresent: the strongest checksum that the source provides has to match. An ETag that
	// looks like an MD5 is no checksum if the same content arrives twice and does not match it.
	ChecksumIfPresent = "ifPresent"
	// ChecksumNone: only sizes are compared.
	ChecksumNone = "none"
)

func checkChecksum(mode string) error {
	if slices.Contains([]string{"", ChecksumRequired, ChecksumIfPresent, ChecksumNone}, mode) {
		return nil
	}
	return fmt.Errorf("checksum %q is not known; it is %s, %s or %s", mode, ChecksumRequired, ChecksumIfPresent, ChecksumNone)
}

// chooseCheck returns how an object is verified.
func (r *run) chooseCheck(sums store.Sums, etag string) store.Check {
	if r.Checksum == ChecksumNone {
		return store.Check{Kind: store.CheckSize}
	}
	return store.ChooseCheck(sums, etag)
}

// trusts reports whether a file that an earlier run verified by check need not be fetched again. The
// earlier run may not have required a checksum.
func (c Config) trusts(check string) bool {
	return c.Checksum != ChecksumRequired || check != "" && check != store.CheckSize
}

// resolveMismatch returns the check that an object has passed, given the result err of check c. content
// identifies the received content. A mismatch that repeats with the same content is no error of the
// transfer. It is the source's error if onDisk confirms that the bytes on disk are the received ones.
func (r *run) resolveMismatch(o store.Object, c store.Check, content string, err error, onDisk func() error) (store.Check, error) {
	if err == nil {
		if r.Checksum == ChecksumRequired && c.Kind == store.CheckSize {
			return c, fmt.Errorf("%w: it gives none, and one is required", store.ErrWrongSum)
		}
		return c, nil
	}
	content = o.ETag + " " + content
	r.mu.Lock()
	repeated := r.lastMismatch[o.Path] == content
	if r.lastMismatch == nil {
		r.lastMismatch = map[string]string{}
	}
	r.lastMismatch[o.Path] = content
	r.mu.Unlock()
	if !repeated {
		return c, err
	}
	if diskErr := onDisk(); diskErr != nil {
		return c, fmt.Errorf("%w: %w", diskErr, err)
	}
	if r.Checksum != ChecksumRequired && !r.hasHashETags() && !c.Declared && (c.Kind == store.CheckMD5 || c.Kind == store.CheckComposite) {
		r.Log.WithField("key", o.Key).Warn("The ETag does not match the content; only the size is checked")
		r.mu.Lock()
		r.badETags++
		r.progress.replaceNote("files have an ETag that looks like a hash but does not match their content, so only their size was checked", r.badETags)
		r.mu.Unlock()
		return store.Check{Kind: store.CheckSize, ETagMismatch: true}, nil
	}
	return c, fmt.Errorf("%w: two downloads had the same content (--checksum=none accepts it): %w", store.ErrWrongSum, err)
}

// hasHashETags reports whether an ETag matches the content of a file of this run. If one ETag of a source is a hash, all
// its ETags are.
func (r *run) hasHashETags() bool {
	return r.progress.hasVerified(store.CheckMD5) || r.progress.hasVerified(store.CheckComposite)
}

// rejectMismatches fails the objects whose ETags do not match their content, and which were accepted before another object
// showed that the source's ETags are hashes. It removes their files, so that the next run fetches them again. Files that
// were changed here stay, and so do those that may not be read, whose objects are refused.
func (r *run) rejectMismatches(ctx context.Context, objects []store.Object) error {
	if r.Checksum == ChecksumNone || !r.hasHashETags() {
		return nil
	}
	for _, o := range objects {
		e, known := r.manifest.entries[o.Path]
		if !known || !e.ETagMismatch || !e.object().Same(o) {
			continue
		}
		fetched := e.object()
		fetched.Key = o.Key
		if _, err := r.checkReplaceable(ctx, fetched); errors.Is(err, fs.ErrPermission) {
			r.noteRefusal(Refusal{o.Key, fmt.Sprintf("the fetched content did not match the ETag: %v", err)})
			continue
		} else if errors.Is(err, store.ErrInTheWay) {
			r.Log.WithError(err).WithField("key", o.Key).Warn("The fetched content did not match the ETag")
			continue
		} else if err != nil {
			return err
		}
		if err := r.journal.drop(e.Path); err != nil {
			return err
		}
		if err := r.dest.Remove(e.Path); err != nil {
			return err
		}
		if err := r.manifest.append(Entry{Path: e.Path, FetchedAt: time.Now().UTC(), Deleted: true}); err != nil {
			return err
		}
		r.failedOne(o, fmt.Errorf("check %q: %w: the content does not match the ETag, and the ETags of other objects are hashes of theirs (--checksum=none accepts it)", o.Key, store.ErrWrongSum))
	}
	return nil
}

// withoutMismatches removes the entries of files that rejectMismatches would reject, if a file in keep shows that the
// source's ETags are hashes.
func (r *run) withoutMismatches(entries map[string]Entry, keep []Entry) {
	if r.Checksum == ChecksumNone || !slices.ContainsFunc(keep, func(e Entry) bool { return e.Check == store.CheckMD5 || e.Check == store.CheckComposite }) {
		return
	}
	maps.DeleteFunc(entries, func(_ string, e Entry) bool { return e.ETagMismatch })
}

// errDisk reports that a file does not read back as it was written.
var errDisk = errors.New("the file on disk differs from the received content; check the node's disk")

// checkOnDisk returns an error if the bytes of a file do not have the CRC of the received bytes.
func (w *worker) checkOnDisk(ctx context.Context, file io.ReaderAt, size int64, want []byte) error {
	crc := store.NewCRC64()
	if err := store.HashInto(ctx, crc, io.NewSectionReader(file, 0, size), w.buf); err != nil {
		return fmt.Errorf("read what was received: %w", err)
	}
	if !bytes.Equal(crc.Sum(nil), want) {
		return errDisk
	}
	return nil
}
