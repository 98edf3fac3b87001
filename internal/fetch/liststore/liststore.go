// Package liststore reads the files that a list names from HTTP servers. The list has the SHA-256 and
// the size of each file.
package liststore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// List is a Store of the files that a list names.
type List struct {
	client  *web.Client
	address *url.URL
	pin     string // SHA-256 of the wanted list, in hex; empty if any is accepted
	items   map[string]item
	sum     string // SHA-256 of the fetched list
}

// maxList bounds a list, in bytes: about 500,000 files.
const maxList = 128 * store.MiB

var pinned = regexp.MustCompile(`^sha256=[0-9a-f]{64}$`)

// Parse parses what follows http:// or https:// in a source. The list is a directory of the files that
// it names, so there is no key.
func Parse(s *store.Source, rest string) error {
	u, err := url.Parse(s.Kind + "://" + rest)
	switch {
	case err != nil:
		return fmt.Errorf("is not a URL; give https://host/list")
	case u.User != nil:
		return fmt.Errorf("holds credentials; give them in the environment or as files")
	case u.Host == "" || u.Path == "" || strings.HasSuffix(u.Path, "/"):
		return fmt.Errorf("names no list; give https://host/list, a file that names a url, sha256 and size in each line")
	case u.Fragment != "" && !pinned.MatchString(u.Fragment):
		return fmt.Errorf("ends in #%s; give #sha256= and the SHA-256 of the list in hex, or leave it out", u.Fragment)
	}
	s.Bucket = rest
	return nil
}

// New returns the Store of an http:// or https:// source. It sends nothing yet.
func New(source store.Source, config web.Config, credentialsDir string) (store.Store, error) {
	u, err := url.Parse(source.Kind + "://" + source.Bucket)
	if err != nil {
		return nil, store.Usage(err)
	}
	l := &List{pin: strings.TrimPrefix(u.Fragment, "sha256=")}
	u.Fragment = ""
	l.address = u
	if credentialsDir != "" {
		config.Origin, config.Authorize = u, web.BasicOrBearer(credentialsDir)
	}
	if l.client, err = web.New(config); err != nil {
		return nil, store.Usage(err)
	}
	return l, nil
}

// List implements store.Store.
func (l *List) List(ctx context.Context, each func(store.Object) error) error {
	text, _, err := l.client.Read(ctx, l.address.String(), nil, maxList)
	if err != nil {
		return fmt.Errorf("read the list: %w", err)
	}
	sum := sha256.Sum256(text)
	if l.sum = hex.EncodeToString(sum[:]); l.pin != "" && l.sum != l.pin {
		return &store.Error{Err: fmt.Errorf("the list's SHA-256 is %s, and the source says %s", l.sum, l.pin)}
	}
	items, err := parse(text, l.address)
	if err != nil {
		return &store.Error{Err: fmt.Errorf("read the list: %w", err)}
	}
	l.items = make(map[string]item, len(items))
	for _, i := range items {
		l.items[i.Key] = i
		if err := each(i.Object); err != nil {
			return err
		}
	}
	return nil
}

// Revision implements store.Revisioned: the SHA-256 of the list.
func (l *List) Revision() string { return "sha256:" + l.sum }

// Stat implements store.Store. A list does not change while it is fetched, so Stat only asks whether
// the server serves ranges.
func (l *List) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	i, known := l.items[key]
	if !known {
		return store.Object{}, store.Sums{}, store.ErrGone
	}
	ranges, size, err := l.client.Ranges(ctx, i.address, nil, i.Object)
	if err != nil {
		return store.Object{}, store.Sums{}, err
	}
	if size >= 0 && size != i.Size {
		return store.Object{}, store.Sums{}, otherSize(i, size)
	}
	o := i.Object
	o.NoRanges = !ranges
	return o, i.sums, nil
}

func otherSize(i item, size int64) error {
	return fmt.Errorf("%w: it has %d bytes, and the list says %d", store.ErrChanged, size, i.Size)
}

// Open implements store.Store.
func (l *List) Open(ctx context.Context, object store.Object, part store.Span) (store.Stream, error) {
	i, known := l.items[object.Key]
	if !known {
		return store.Stream{}, store.ErrGone
	}
	s, err := l.client.Open(ctx, i.address, nil, object, part)
	if err != nil {
		return store.Stream{}, err
	}
	if s.Size != i.Size {
		_ = s.Body.Close()
		return store.Stream{}, otherSize(i, s.Size)
	}
	s.Sums = i.sums
	return s, nil
}

// Parts implements store.Store: files have none.
func (l *List) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }
