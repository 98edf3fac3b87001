package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// lacksManifest reports whether nothing says what was fetched.
func (u *upload) lacksManifest() bool { return u.Back && u.came == nil }

// comparison is how a file and its object compared, where no manifest says what was fetched.
type comparison struct {
	file, object string // ETags
	same         bool
}

// compare notes how a file and an object compared: it need not be read again to tell that they
// differ, and a file may replace the object that it was equal to.
func (u *upload) compare(o, there store.Object, same bool) {
	if !u.lacksManifest() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.compared == nil {
		u.compared = map[string]comparison{}
	}
	u.compared[o.Path] = comparison{o.ETag, there.ETag, same}
}

// comparedBefore is how a file and its object compared the last time.
func (u *upload) comparedBefore(path string) comparison {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.compared[path]
}

// origin is what is known of a file whose target is what it was fetched from.
type origin int

const (
	// changed: it is not what was fetched, or its object may not be any more.
	changed origin = iota
	// asItCame: it has the very content that was fetched.
	asItCame
	// asSent: it has the very content that its object had when it was sent last.
	asSent
	// unsure: nothing says whether it has. Without a manifest that is so for all files but those
	// that were sent.
	unsure
)

// origin compares a file with what was fetched, or sent since. Its times do not say: programs set
// them, and clocks are set.
func (u *upload) origin(ctx context.Context, o store.Object, file pinned, crc, buf []byte) (origin, error) {
	e, known := u.came[o.Path]
	last, isSent := u.lastSent(o.Path)
	switch {
	case isSent && last.CRC64 == store.Encode(crc) && last.To == u.to && !last.Unsure:
		return asSent, nil
	case isSent:
		return changed, nil
	case u.lacksManifest():
		return unsure, nil
	case !known || e.Bytes != o.Size:
		return changed, nil
	}
	return u.compareFetched(ctx, o, e, file, crc, buf)
}

// compareFetched compares a file with what was fetched, e, by the checksum that the server gave of it.
func (u *upload) compareFetched(ctx context.Context, o store.Object, e Entry, file pinned, crc, buf []byte) (origin, error) {
	is := func(err error) origin {
		if err == nil {
			return asItCame
		}
		return changed
	}
	c := store.CheckOf(e.Check, e.Checksum)
	switch {
	case e.CRC64 != "":
		return is(store.Check{Kind: store.CheckCRC64, Want: e.CRC64}.Verify(crc)), nil
	case c.Want != "" && c.Streams():
		h := c.Hasher()
		if err := store.HashInto(ctx, h, io.NewSectionReader(file, 0, o.Size), buf); err != nil {
			return unsure, err
		}
		return is(c.Verify(h.Sum(nil))), nil
	case c.Kind == store.CheckComposite:
		ask := func(ctx context.Context, n int) ([]int64, error) { // nothing, unless the object is still the same
			return u.remote.Parts(ctx, store.Object{Key: u.prefix + o.Path, Size: e.Bytes, ETag: e.ETag, Version: e.VersionID}, n)
		}
		known, err := c.VerifyComposite(ctx, file, o.Size, buf, ask)
		switch {
		case err != nil && !errors.Is(err, store.ErrChecksum):
			return unsure, err
		case known || err != nil:
			return is(err), nil
		}
	}
	return unsure, nil
}

// mayReplace returns an error where a file that may be as it came would be sent over what
// somebody else changed. there and err are what the target said.
func (u *upload) mayReplace(path string, there store.Object, err error) error {
	switch e := u.came[path]; {
	case store.Classify(err) == store.Gone && err != nil:
		return nil
	case err != nil:
		return fmt.Errorf("look at what is there: %w", err)
	case there.ETag != "" && there.ETag == e.ETag:
		return nil
	}
	if before := u.comparedBefore(path); before.same && there.ETag != "" && there.ETag == before.object {
		return nil
	}
	if u.lacksManifest() {
		return fmt.Errorf("%w, or the file was, and %s, which tells, is not there: remove the object to have the file uploaded, or the file to keep the object", store.ErrConflict, destination.ManifestFile)
	}
	return fmt.Errorf("%w, and nothing says whether the file was changed here: remove the object to have the file uploaded, or the file to keep the object", store.ErrConflict)
}
