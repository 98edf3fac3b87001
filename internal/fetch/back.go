package fetch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// sentFile names, beside the manifest, the fetched files that were sent over their
// objects: lines of sent.
const sentFile = store.ControlDir + "/sent.jsonl"

// sent is a file whose object may not be what was fetched any more. FetchedAt is that of
// its Entry: a file that is fetched anew was not sent since.
type sent struct {
	Path      string    `json:"path"`
	FetchedAt time.Time `json:"fetchedAt"`
}

// readSent reads which files were sent, by path. There may be none.
func readSent(dir string) (map[string]time.Time, error) {
	out := map[string]time.Time{}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	file, err := root.Open(sentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", sentFile, err)
	}
	defer func() { _ = file.Close() }()
	if _, err := readLines(bufio.NewReader(file), func(line []byte) error {
		var one sent
		if json.Unmarshal(line, &one) == nil { // a torn line is of a file that was not sent
			out[one.Path] = one.FetchedAt
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read %s: %w", sentFile, err)
	}
	return out, nil
}

// lacksManifest reports whether nothing says what was fetched.
func (u *upload) lacksManifest() bool { return u.Back && u.came == nil }

// isSent reports whether a file was sent since it was fetched. Without a manifest nothing was fetched
// since, for that would have written one.
func (u *upload) isSent(e Entry) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, is := u.sent[e.Path]
	return is && (u.lacksManifest() || at.Equal(e.FetchedAt))
}

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

// sends notes durably that a file is about to be sent: from then on its object is not
// known to be what was fetched, even if nobody hears how that ended.
func (u *upload) sends(path string) error {
	e, known := u.came[path]
	if u.lacksManifest() {
		e, known = Entry{Path: path}, true
	}
	if !known || u.isSent(e) {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := appendSent(u.Dir, sent{Path: path, FetchedAt: e.FetchedAt}); err != nil {
		return asLocal(fmt.Errorf("note in %s that it is sent, which has to be on disk first: %w", sentFile, err))
	}
	u.sent[path] = e.FetchedAt
	return nil
}

func appendSent(dir string, one sent) error {
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(store.ControlDir, 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(sentFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(append(append([]byte{'\n'}, data...), '\n')) // the line before may be torn
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil {
		return err
	}
	return errors.Join(syncDir(root, store.ControlDir), syncDir(root, "."))
}

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// origin is what is known of a file whose target is what it was fetched from.
type origin int

const (
	// changed: it is not what was fetched, or its object may not be any more.
	changed origin = iota
	// asItCame: it has the very content that was fetched.
	asItCame
	// unsure: nothing says whether it has. Without a manifest that is so for all files but those
	// that were sent.
	unsure
)

// origin compares a file with what was fetched. Its times do not say: programs set
// them, and clocks are set.
func (u *upload) origin(ctx context.Context, o store.Object, file pinned, crc, buf []byte) (origin, error) {
	if u.lacksManifest() && !u.isSent(Entry{Path: o.Path}) {
		return unsure, nil
	}
	e, known := u.came[o.Path]
	if !known || e.Bytes != o.Size || u.isSent(e) {
		return changed, nil
	}
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
