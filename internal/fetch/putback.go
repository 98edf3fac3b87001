package fetch

import (
	"context"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// lacksManifest reports whether an upload with Back has no manifest that records what was fetched.
func (u *upload) lacksManifest() bool { return u.Back && u.fetched == nil }

// isDoubtful reports whether an upload with Back may lack records of what was fetched.
func (u *upload) isDoubtful() bool { return u.lacksManifest() || u.journalDamaged }

// mayBeFetched reports whether a file may have been fetched, so that it may still be what was fetched.
func (u *upload) mayBeFetched(path string) bool { return u.needsSentNote(path) || u.journalDamaged }

// needsSentNote reports whether a file must not be sent without a durable note about it. If the upload is killed, and the
// file then has its fetched content again, the next upload would take it for unchanged; without a manifest, it would report
// a conflict for every file that was sent. With only a damaged line of the journal, it may report one for a few.
func (u *upload) needsSentNote(path string) bool {
	_, fetched := u.fetched[path]
	return fetched || len(u.received[path]) > 0 || u.lacksManifest()
}

// comparison is the result of comparing a file with its object when records of what was fetched may be missing.
type comparison struct {
	file, object string // ETags
	same         bool
}

// compare records how a file and an object compared, so that they are not read again to find that they
// differ, and so that a file may replace the object that it was equal to.
func (u *upload) compare(o, there store.Object, same bool) {
	if !u.isDoubtful() {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.compared == nil {
		u.compared = map[string]comparison{}
	}
	u.compared[o.Path] = comparison{o.ETag, there.ETag, same}
}

// comparedBefore returns the last comparison of a file with its object.
func (u *upload) comparedBefore(path string) comparison {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.compared[path]
}

// origin is what is known of a file that is uploaded to where it was fetched from.
type origin int

const (
	// originChanged: the file is not what was fetched, or its object may no longer be.
	originChanged origin = iota
	// originFetched: the file has exactly the fetched content.
	originFetched
	// originSent: the file has exactly the content that its object had when the file was sent last.
	originSent
	// originUnknown: nothing records whether the file has changed. Without a manifest that is so for all files
	// that were not sent, and with a damaged journal for all files that are not as they were fetched or sent.
	originUnknown
)

// origin compares a file with what was fetched, or sent since. Times are no evidence: programs set
// them, and clocks are set.
func (u *upload) origin(ctx context.Context, o store.Object, file pinned, crc, buf []byte) (origin, error) {
	last, isSent := u.lastSent(o.Path)
	if isSent && last.CRC64 == store.Encode(crc) && last.To == u.targetID && !last.Unsure {
		return originSent, nil
	}
	received, err := u.isReceived(ctx, o, file, crc, buf)
	switch {
	case err != nil:
		return originUnknown, err
	case isSent && received: // nothing shows whether it was received again after it was sent, or changed back here
		return originUnknown, nil
	case isSent:
		return originChanged, nil
	case received:
		return originFetched, nil
	case u.lacksManifest():
		return originUnknown, nil
	}
	from := originChanged
	if e, known := u.fetched[o.Path]; known && e.Bytes == o.Size {
		from = compareFetched(e, crc)
	}
	if from == originChanged && u.journalDamaged {
		from = originUnknown
	}
	return from, nil
}

// compareFetched compares the CRC of a file with that of what was fetched. An entry without one does not show whether the
// file has changed.
func compareFetched(e Entry, crc []byte) origin {
	switch e.CRC64 {
	case "":
		return originUnknown
	case store.Encode(crc):
		return originFetched
	}
	return originChanged
}

// checkReplace returns an error if a file that may be unchanged would overwrite an object that somebody
// else has changed. there and err are the target's answer.
func (u *upload) checkReplace(path string, there store.Object, err error) error {
	switch e := u.fetched[path]; {
	case store.Classify(err) == store.Gone && err != nil:
		return nil
	case err != nil:
		return fmt.Errorf("check the existing objects: %w", err)
	case there.ETag != "" && (there.ETag == e.ETag || u.wasReceived(path, there.ETag)):
		return nil
	}
	if before := u.comparedBefore(path); before.same && there.ETag != "" && there.ETag == before.object {
		return nil
	}
	if u.lacksManifest() {
		return fmt.Errorf("%w, or the file was, and %s, which would show which, is missing: remove the object to upload the file, or remove the file to keep the object", store.ErrConflict, destination.ManifestFile)
	}
	return fmt.Errorf("%w, and it is unknown whether the file was changed here: remove the object to upload the file, or remove the file to keep the object", store.ErrConflict)
}
