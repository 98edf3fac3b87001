package peer

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// MaxIndex bounds an index, in bytes: about 500,000 files. Larger datasets are not copied from peers.
const MaxIndex = 128 * store.MiB

// ErrTooLarge: a dataset has too many files for an index.
var ErrTooLarge = errors.New("it has too many files to be copied from peers")

// Index lists the files of a complete dataset. Two directories with the same files have the same
// encoded index.
type Index struct {
	Revision string
	Files    []File
}

// File is a file of a dataset, with metadata from its source and the hash of its content.
type File struct {
	Path      string    `json:"path"`
	Bytes     int64     `json:"bytes"`
	ETag      string    `json:"etag,omitempty"`
	VersionID string    `json:"versionId,omitempty"`
	Modified  time.Time `json:"modified,omitzero"`
	// SHA256 is in base64, as in S3.
	SHA256 string `json:"sha256"`
}

// header is the first line of an encoded index.
type header struct {
	Revision string `json:"revision,omitempty"`
	Files    int    `json:"files"`
}

// Encode returns the index as lines of JSON, in the order of the paths, and its digest.
func (i Index) Encode() (data []byte, digest string, err error) {
	files := slices.SortedFunc(slices.Values(i.Files), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	var out bytes.Buffer
	lines := json.NewEncoder(&out)
	lines.SetEscapeHTML(false)
	if err := lines.Encode(header{i.Revision, len(files)}); err != nil {
		return nil, "", fmt.Errorf("write index: %w", err)
	}
	for _, f := range files {
		f.Modified = f.Modified.UTC()
		if err := lines.Encode(f); err != nil {
			return nil, "", fmt.Errorf("write index: %w", err)
		}
		if int64(out.Len()) > MaxIndex {
			return nil, "", ErrTooLarge
		}
	}
	return out.Bytes(), digestOf(out.Bytes()), nil
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// parseIndex parses an encoded index, and fails if it does not have this digest.
func parseIndex(data []byte, digest string) (Index, error) {
	if got := digestOf(data); got != digest {
		return Index{}, fmt.Errorf("%w: its index is %s, and %s is wanted", store.ErrChecksum, got, digest)
	}
	var first header
	lines := json.NewDecoder(bytes.NewReader(data))
	if err := lines.Decode(&first); err != nil {
		return Index{}, fmt.Errorf("read index: %w", err)
	}
	out := Index{Revision: first.Revision}
	for {
		var f File
		switch err := lines.Decode(&f); {
		case errors.Is(err, io.EOF) && len(out.Files) == first.Files:
			return out, nil
		case errors.Is(err, io.EOF):
			return Index{}, fmt.Errorf("read index: it has %d files, and says %d", len(out.Files), first.Files)
		case err != nil:
			return Index{}, fmt.Errorf("read index: %w", err)
		}
		out.Files = append(out.Files, f)
	}
}
