package fetch

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// sentFile names, beside the manifest, the files that were sent back: lines of sent.
const sentFile = store.ControlDir + "/sent.jsonl"

// sent is a file whose object may not be what was fetched any more. FetchedAt is that of
// its Entry: a file that is fetched anew was not sent since. A later line for a path replaces an
// earlier one.
type sent struct {
	Path      string    `json:"path"`
	FetchedAt time.Time `json:"fetchedAt"`
	// CRC64 is what the object at To was verified to have; empty from when the file is about to be
	// sent until that is known. Earlier releases wrote neither.
	CRC64 string `json:"crc64,omitempty"`
	To    string `json:"to,omitempty"`
	// Unsure: an upload before that one had no known end, so its content may replace that still.
	Unsure bool `json:"unsure,omitempty"`
}

// readSent reads which files were sent, by path, and how many lines say so. There may be none.
func readSent(dir string) (out map[string]sent, lines int, err error) {
	out = map[string]sent{}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, 0, fmt.Errorf("open directory: %w", err)
	}
	defer func() { _ = root.Close() }() // it was only read
	file, err := root.Open(sentFile)
	if errors.Is(err, fs.ErrNotExist) {
		return out, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", sentFile, err)
	}
	defer func() { _ = file.Close() }()
	if _, err := readLines(bufio.NewReader(file), func(line []byte) error {
		var one sent
		// A torn line says nothing: its upload was not begun, or is not known to have been verified.
		if json.Unmarshal(line, &one) == nil {
			out[one.Path] = one
			lines++
		}
		return nil
	}); err != nil {
		return nil, 0, fmt.Errorf("read %s: %w", sentFile, err)
	}
	return out, lines, nil
}

// openSent reads which files were sent. to names the target in what is noted, as what another one has
// says nothing of it.
func (u *upload) openSent() (err error) {
	u.to = protocol.EndpointOf(u.S3.Endpoint) + " " + u.Target.Bucket + "/" + u.prefix
	if u.sent, u.sentLines, err = readSent(u.Dir); err != nil {
		return err
	}
	for path, one := range u.sent {
		if one.To == u.to {
			one.To = u.to // kept once, not once for each file
			u.sent[path] = one
		}
	}
	return nil
}

// lastSent returns what is noted of a file if it was sent since it was fetched. Without a manifest
// nothing was fetched since, for that would have written one.
func (u *upload) lastSent(path string) (last sent, is bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, is = u.sent[path]
	return last, is && (u.lacksManifest() || last.FetchedAt.Equal(u.came[path].FetchedAt))
}

// sends notes durably that a file is about to be sent: from then on its object is not
// known to be what was fetched, or sent before, even if nobody hears how that ended.
//
// A file that was not fetched is sent even if the note that it was sent before cannot be withdrawn, as on a full
// volume, which perhaps nobody can free any more. That matters only if this process is killed and the file
// then has the content again that was noted.
func (u *upload) sends(path string) error {
	if !u.Back {
		return nil
	}
	_, fetched := u.came[path]
	last, is := u.lastSent(path)
	now := sent{Path: path, FetchedAt: u.came[path].FetchedAt, To: u.to, Unsure: is && (last.Unsure || last.CRC64 == "" && last.To != "")}
	switch {
	case is && last.CRC64 == "", !is && !fetched && !u.lacksManifest(): // no note has to be withdrawn
		u.keepSent(now)
		return nil
	}
	err := u.noteSent(now, true)
	if err != nil && !fetched && !u.lacksManifest() {
		u.Log.WithError(err).WithField("path", path).Warn("That a file is sent again cannot be noted")
		u.keepSent(now)
		return nil
	}
	if err != nil {
		return asLocal(fmt.Errorf("note in %s that it is sent, which has to be on disk first: %w", sentFile, err))
	}
	return nil
}

// hasSent notes that the object of a file was verified to have its content: from then on somebody
// else's stays in its place until the file changes. It need not be on disk, for without it the file
// is sent once more.
func (u *upload) hasSent(path string, crc []byte) {
	if !u.Back {
		return
	}
	last, is := u.lastSent(path)
	now := sent{Path: path, FetchedAt: u.came[path].FetchedAt, CRC64: store.Encode(crc), To: u.to, Unsure: is && last.Unsure}
	if is && last == now {
		return
	}
	if err := u.noteSent(now, false); err != nil {
		u.Log.WithError(err).WithField("path", path).Warn("What was uploaded is not noted")
	}
}

// isSame notes what hasSent does of a file whose object was found to have its content already. One that
// was not sent is left out: it may still be as it came.
func (u *upload) isSame(path string, crc []byte) {
	_, fetched := u.came[path]
	if _, is := u.lastSent(path); is || !fetched && !u.lacksManifest() {
		u.hasSent(path, crc)
	}
}

// noteSent appends a line to sentFile. Others may look at what is noted meanwhile, for that may take a while.
func (u *upload) noteSent(one sent, durably bool) error {
	u.noting.Lock()
	defer u.noting.Unlock()
	if err := u.appendSent(one, durably); err != nil {
		return err
	}
	u.sentLines++
	u.keepSent(one)
	return nil
}

// keepSent keeps in memory what is noted of a file, or what will be.
func (u *upload) keepSent(one sent) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent[one.Path] = one
}

func (u *upload) appendSent(one sent, durably bool) error {
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(u.Dir)
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
	if !durably {
		return errors.Join(err, file.Close())
	}
	err = errors.Join(err, file.Sync(), file.Close())
	if err != nil || u.sentIsThere {
		return err
	}
	err = errors.Join(syncDir(root, store.ControlDir), syncDir(root, "."))
	u.sentIsThere = err == nil
	return err
}

// shortenSent writes sentFile anew once it has far more lines than there are files, without those that
// were never fetched and are gone. files are those of the directory.
func (u *upload) shortenSent(files []store.Object) {
	u.noting.Lock()
	defer u.noting.Unlock()
	if u.sentLines < 2*(len(files)+len(u.came))+fewLines {
		return
	}
	u.sentLines = 0 // if this fails, it is tried again after as many lines
	known := u.sentOf(files)
	file, err := writeLinesAnew(u.Dir, sentFile, func(yield func(any) bool) {
		for _, one := range known {
			if !yield(one) {
				return
			}
		}
	})
	if err != nil {
		u.Log.WithError(err).Warn("What was sent is noted at greater length than need be")
		return
	}
	_ = file.Close() // it is on disk
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent, u.sentLines = known, len(known)
}

// sentOf returns what is noted of the files that were fetched and of these. Without a manifest nobody knows
// which were fetched, and it is all of it.
func (u *upload) sentOf(files []store.Object) map[string]sent {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lacksManifest() {
		return maps.Clone(u.sent)
	}
	known := map[string]sent{}
	for path := range u.came {
		if one, is := u.sent[path]; is {
			known[path] = one
		}
	}
	for _, o := range files {
		if one, is := u.sent[o.Path]; is {
			known[o.Path] = one
		}
	}
	return known
}

// writeLinesAnew replaces a file of JSON lines durably, and returns the new one.
func writeLinesAnew(dir, name string, lines iter.Seq[any]) (*os.File, error) {
	next := name + ".new"
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := root.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err = writeLines(file, lines); err == nil {
		err = root.Rename(next, name)
	}
	if err == nil {
		err = syncDir(root, store.ControlDir)
	}
	if err != nil {
		_ = file.Close()
		_ = root.Remove(next) // it takes room; what is left of it, the next try removes
		return nil, err
	}
	return file, nil
}

// writeLines writes JSON lines into a file, durably.
func writeLines(file *os.File, lines iter.Seq[any]) error {
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return errors.Join(out.Flush(), file.Sync())
}

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
