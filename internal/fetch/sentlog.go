package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// sentFile lists, beside the manifest, the files that were sent back: lines of sentRecord.
const sentFile = store.ControlDir + "/sent.jsonl"

// sentRecord records that the object of a file may no longer be what was fetched. FetchedAt is copied from
// the file's Entry: a file that is fetched again counts as not sent. A later line for a path replaces
// an earlier one.
type sentRecord struct {
	Path      string    `json:"path"`
	FetchedAt time.Time `json:"fetchedAt"`
	// CRC64 is the verified CRC64 of the object at To; empty from just before the file is sent until it
	// is verified.
	CRC64 string `json:"crc64,omitempty"`
	To    string `json:"to,omitempty"`
	// Unsure: the outcome of an earlier upload is unknown, so its content may still replace this one.
	Unsure bool `json:"unsure,omitempty"`
}

// readSent returns the files that were sent, by path, and the number of lines. sentFile may be missing.
func readSent(dir string) (out map[string]sentRecord, lines int, err error) {
	out = map[string]sentRecord{}
	_, err = readLinesIn(dir, sentFile, func(line []byte) {
		var one sentRecord
		// A torn line is ignored: its upload was not begun, or is not known to have been verified.
		if json.Unmarshal(line, &one) == nil {
			out[one.Path] = one
			lines++
		}
	})
	return out, lines, err
}

// openSent reads which files were sent. u.targetID names the target in the notes, because a note about
// another target says nothing about this one.
func (u *upload) openSent() (err error) {
	u.targetID = protocol.EndpointOf(u.S3.Endpoint) + " " + u.Target.Bucket + "/" + u.prefix
	if u.sent, u.sentLines, err = readSent(u.Dir); err != nil {
		return err
	}
	for path, one := range u.sent {
		if one.To == u.targetID {
			one.To = u.targetID // all files share one string
			u.sent[path] = one
		}
	}
	return nil
}

// lastSent returns the note about a file if the file was sent since it was fetched. Without a manifest
// no file was fetched since, because a fetch writes a manifest.
func (u *upload) lastSent(path string) (last sentRecord, is bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, is = u.sent[path]
	return last, is && (u.lacksManifest() || last.FetchedAt.Equal(u.fetched[path].FetchedAt))
}

// noteSending durably notes that a file is about to be sent. From then on its object is not known to be what
// was fetched, or sent before, even if the outcome of the upload is never learned.
//
// A file that does not need the note (see needsSentNote) is sent even if the note cannot be written, as on a full
// volume, where perhaps nobody can free space. That matters only if this process is killed: an earlier note is then not
// withdrawn, in case the file has that content again; and if the journal is damaged, a conflict may be reported.
func (u *upload) noteSending(path string) error {
	if !u.Back {
		return nil
	}
	last, is := u.lastSent(path)
	now := sentRecord{Path: path, FetchedAt: u.fetched[path].FetchedAt, To: u.targetID, Unsure: is && (last.Unsure || last.CRC64 == "")}
	switch {
	case is && last.CRC64 == "", !is && !u.mayBeFetched(path): // no note has to be withdrawn
		u.keepSent(now)
		return nil
	}
	err := u.noteSent(now, true)
	if err != nil && !u.needsSentNote(path) {
		u.Log.WithError(err).WithField("path", path).Warn("Cannot record in .flexlvm/sent.jsonl that the file is sent; it is sent anyway")
		u.keepSent(now)
		return nil
	}
	if err != nil {
		return asLocal(fmt.Errorf("record in %s that it is sent, which must be on disk before the upload: %w", sentFile, err))
	}
	return nil
}

// noteVerified notes that the object of a file was verified to have the file's content. From then on, an
// object that somebody else writes in its place stays until the file changes. The note need not be on
// disk: without it the file is sent once more.
func (u *upload) noteVerified(path string, crc []byte) {
	if !u.Back {
		return
	}
	last, is := u.lastSent(path)
	now := sentRecord{Path: path, FetchedAt: u.fetched[path].FetchedAt, CRC64: store.Encode(crc), To: u.targetID, Unsure: is && last.Unsure}
	if is && last == now {
		return
	}
	if err := u.noteSent(now, false); err != nil {
		u.Log.WithError(err).WithField("path", path).Warn("Cannot record in .flexlvm/sent.jsonl that the file was uploaded")
	}
}

// noteSame is noteVerified for a file whose object already had its content. A file that may have been fetched
// and was not sent is skipped: it may be unchanged.
func (u *upload) noteSame(path string, crc []byte) {
	if _, is := u.lastSent(path); is || !u.mayBeFetched(path) {
		u.noteVerified(path, crc)
	}
}

// noteSent appends a line to sentFile. It does not lock mu while it writes, because a write may take
// long and the notes are read meanwhile.
func (u *upload) noteSent(one sentRecord, durably bool) error {
	u.sentMu.Lock()
	defer u.sentMu.Unlock()
	if err := u.appendSent(one, durably); err != nil {
		return err
	}
	u.sentLines++
	u.keepSent(one)
	return nil
}

// keepSent stores in memory what is noted, or will be noted, about a file.
func (u *upload) keepSent(one sentRecord) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent[one.Path] = one
}

func (u *upload) appendSent(one sentRecord, durably bool) error {
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
	if err != nil || u.sentFileDurable {
		return err
	}
	err = errors.Join(syncDir(root, store.ControlDir), syncDir(root, "."))
	u.sentFileDurable = err == nil
	return err
}

// shortenSent rewrites sentFile once it has far more lines than there are files, without the files that
// were never fetched and are gone. files are the files of the directory.
func (u *upload) shortenSent(files []store.Object) {
	u.sentMu.Lock()
	defer u.sentMu.Unlock()
	if u.sentLines < 2*(len(files)+len(u.fetched))+minRewriteLines {
		return
	}
	u.sentLines = 0 // if this fails, it is retried after as many lines
	known := u.sentOf(files)
	log, err := replaceLog(u.Dir, sentFile, func(yield func(any) bool) {
		for _, one := range known {
			if !yield(one) {
				return
			}
		}
	})
	if err != nil {
		u.Log.WithError(err).Warn("Cannot shorten .flexlvm/sent.jsonl")
		return
	}
	log.Close()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent, u.sentLines = known, len(known)
}

// sentOf returns the notes about fetched files and about the given files. Without a manifest it is
// unknown which files were fetched, so it returns all notes.
func (u *upload) sentOf(files []store.Object) map[string]sentRecord {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lacksManifest() {
		return maps.Clone(u.sent)
	}
	known := map[string]sentRecord{}
	for path := range u.fetched {
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
