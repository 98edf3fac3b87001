package fetch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Entry is one line of the manifest: a file that is complete, verified and durable; or, with Deleted, a
// file that is no longer there.
type Entry struct {
	Path      string    `json:"path"`
	Bytes     int64     `json:"bytes"`
	ETag      string    `json:"etag,omitempty"`
	VersionID string    `json:"versionId,omitempty"`
	Modified  time.Time `json:"modified,omitzero"`
	Check     string    `json:"check,omitempty"`
	Checksum  string    `json:"checksum,omitempty"`
	// CRC64 is the CRC64NVME of the received content, whatever the source reports, encoded as in S3.
	CRC64 string `json:"crc64,omitempty"`
	// SHA256 is the SHA-256 of the content, encoded as in S3, if it was requested and is not the
	// Checksum.
	SHA256 string `json:"sha256,omitempty"`
	// ETagMismatch: the ETag looks like a hash of the content and does not match it, so only the size was checked. See
	// rejectMismatches.
	ETagMismatch bool      `json:"etagMismatch,omitempty"`
	FetchedAt    time.Time `json:"fetchedAt"`
	Deleted      bool      `json:"deleted,omitempty"`
}

func (e Entry) object() store.Object {
	return store.Object{Path: e.Path, Size: e.Bytes, ETag: e.ETag, Version: e.VersionID, Modified: e.Modified}
}

// manifest is the log of entries. One goroutine at a time uses it.
type manifest struct {
	*jsonLog
	// entries is the log's current content, by path.
	entries map[string]Entry
}

// openManifest reads the destination's manifest. A line that cannot be parsed is ignored: its file is
// fetched again.
func openManifest(d *destination.Dir) (manifest, error) {
	m := manifest{entries: make(map[string]Entry)}
	var err error
	m.jsonLog, err = openLog(d.Root, destination.ManifestFile, func(line []byte) { applyLine(m.entries, line) })
	return m, err
}

// append writes entries, see jsonLog.append.
func (m manifest) append(entries ...Entry) error {
	lines := make([]any, len(entries))
	for i := range entries {
		lines[i] = &entries[i]
	}
	if err := m.jsonLog.append(lines...); err != nil {
		return err
	}
	for _, e := range entries {
		applyEntry(m.entries, e)
	}
	return nil
}

// readManifest returns the entries of the files that were fetched into a directory, by path, while
// others may write there. The manifest may be missing.
func readManifest(dir string) (map[string]Entry, error) {
	entries, err := manifestIn(dir)
	if err == nil && entries == nil {
		entries = make(map[string]Entry)
	}
	return entries, err
}

// manifestIn is readManifest, but returns nil if there is no manifest.
func manifestIn(dir string) (map[string]Entry, error) {
	entries := make(map[string]Entry)
	found, err := readLinesIn(dir, destination.ManifestFile, func(line []byte) { applyLine(entries, line) })
	if err != nil || !found {
		return nil, err
	}
	return entries, nil
}

// applyLine applies a line of the manifest to entries.
func applyLine(entries map[string]Entry, line []byte) {
	var e Entry
	if json.Unmarshal(line, &e) == nil && checkPath(e.Path) == nil {
		applyEntry(entries, e)
	}
}

func applyEntry(entries map[string]Entry, e Entry) {
	if e.Deleted {
		delete(entries, e.Path)
	} else {
		entries[e.Path] = e
	}
}

// replaced reports whether something else than the file of e is at its path. A missing file does not
// count.
func replaced(d *destination.Dir, e Entry) (bool, error) {
	if _, err := d.Lstat(e.Path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	here, err := present(d, e)
	return !here, err
}

// A lister describes files below a directory, as destination.Dir does.
type lister interface {
	Lstat(name string) (fs.FileInfo, error)
}

// present reports whether the file of e is at its path, as far as can be seen without reading it: it
// has its size, and was not written to since.
func present(d lister, e Entry) (bool, error) {
	info, err := d.Lstat(e.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("check %s: %w", e.Path, err)
	}
	return e.describes(info), nil
}

// describes reports whether a file may be the one that e was written for.
func (e Entry) describes(info fs.FileInfo) bool {
	return info.Mode().IsRegular() && info.Size() == e.Bytes && !info.ModTime().After(e.FetchedAt)
}
