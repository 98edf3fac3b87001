package liststore

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// line is one file of a list.
type line struct {
	// URL of the file; a relative one is resolved against the list's.
	URL string `json:"url"`
	// SHA256 of its content, in hex.
	SHA256 string `json:"sha256"`
	// Size in bytes.
	Size *int64 `json:"size"`
	// Path in the directory; by default the path of a relative URL, or the last element of an absolute
	// one.
	Path string `json:"path"`
}

// item is a file that a list names.
type item struct {
	store.Object
	address string
	sums    store.Sums
}

// parse reads a list: one JSON object per line. If any line cannot be read, the whole list fails: the
// files missing from it would be removed.
func parse(text []byte, base *url.URL) ([]item, error) {
	var items []item
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	for n := 1; ; n++ {
		var l line
		err := in.Decode(&l)
		if errors.Is(err, io.EOF) {
			return items, nil
		}
		if err != nil {
			return nil, fmt.Errorf("entry %d is not a JSON object with url, sha256, size and perhaps path: %w", n, err)
		}
		one, err := l.item(base)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", n, err)
		}
		items = append(items, one)
	}
}

// item checks a line.
func (l line) item(base *url.URL) (item, error) {
	sum, err := hex.DecodeString(l.SHA256)
	if err != nil || len(sum) != 32 {
		return item{}, fmt.Errorf("sha256 %q is not a SHA-256 in hex", l.SHA256)
	}
	if l.Size == nil || *l.Size < 0 {
		return item{}, errors.New("size has to be the file's size in bytes")
	}
	to, err := url.Parse(l.URL)
	if err != nil || l.URL == "" {
		return item{}, errors.New("url is not a URL") // it may hold a secret
	}
	name := l.Path
	switch {
	case name != "":
	case to.IsAbs() || to.Host != "" || strings.HasPrefix(to.Path, "/"):
		name = path.Base(to.Path)
	default:
		name = strings.TrimPrefix(to.Path, "./")
	}
	address := base.ResolveReference(to)
	if address.Scheme != "https" && address.Scheme != "http" || address.Host == "" || address.User != nil {
		return item{}, fmt.Errorf("url of %q has to be http[s]://host/path or relative, without a user", name)
	}
	return item{
		Object:  store.Object{Key: name, Size: *l.Size, ETag: "sha256:" + strings.ToLower(l.SHA256)},
		address: address.String(), sums: store.Sums{SHA256: base64.StdEncoding.EncodeToString(sum)},
	}, nil
}
