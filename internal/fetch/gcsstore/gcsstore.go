// Package gcsstore reads objects from Google Cloud Storage through its JSON API.
package gcsstore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// Config describes how to reach the server.
type Config struct {
	web.Config
	// Endpoint is http[s]://host[:port]; empty for Google's own.
	Endpoint string
	// CredentialsDir is a directory with a file key.json; empty for the credentials that Google's own
	// tools find: GOOGLE_APPLICATION_CREDENTIALS, and the machine's or the pod's account.
	CredentialsDir string
	Anonymous      bool
}

// Bucket is a Store of one bucket.
type Bucket struct {
	client *web.Client
	source store.Source
	base   string // URL of the bucket's objects
}

var bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$`)

// Parse parses what follows gs:// in a source.
func Parse(s *store.Source, rest string) error {
	s.Bucket, s.Key, _ = strings.Cut(rest, "/")
	if !bucketName.MatchString(s.Bucket) {
		return errors.New("names no bucket; give gs://bucket/key")
	}
	return nil
}

// New returns the Store of a gs:// source. It sends nothing yet.
func New(source store.Source, config Config) (store.Store, error) {
	base, err := url.Parse(strings.TrimRight(cmp.Or(config.Endpoint, "https://storage.googleapis.com"), "/"))
	if err != nil || base.Host == "" || base.User != nil || base.Path != "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, store.Usage(errors.New("--endpoint is not of the form http[s]://host[:port]"))
	}
	config.Origin = base
	if !config.Anonymous {
		if config.Authorize, err = authorize(config); err != nil {
			return nil, store.Usage(err)
		}
	}
	client, err := web.New(config.Config)
	if err != nil {
		return nil, store.Usage(err)
	}
	return &Bucket{client: client, source: source, base: base.String() + "/storage/v1/b/" + source.Bucket + "/o"}, nil
}

// resource is an object as the API returns it.
type resource struct {
	Name, MD5Hash, CRC32C, Generation, ContentEncoding string
	Size                                               int64 `json:",string"`
	Updated                                            time.Time
}

const fields = "name,size,md5Hash,crc32c,generation,updated,contentEncoding"

// object uses the generation as the ETag: it differs for each content.
func (r resource) object() store.Object {
	return store.Object{Key: r.Name, Size: r.Size, ETag: "generation " + r.Generation, Modified: r.Updated}
}

func (r resource) sums() store.Sums {
	s := store.Sums{Opaque: true, CRC32C: r.CRC32C}
	if sum, err := base64.StdEncoding.DecodeString(r.MD5Hash); err == nil && len(sum) == 16 {
		s.MD5 = hex.EncodeToString(sum)
	}
	return s
}

const maxResponse = 64 * store.MiB

// List implements store.Store.
func (b *Bucket) List(ctx context.Context, each func(store.Object) error) error {
	if b.source.Single() {
		o, _, err := b.Stat(ctx, b.source.Key, "")
		if err != nil {
			return err
		}
		return each(o)
	}
	query := url.Values{"prefix": {b.source.ListPrefix()}, "fields": {"nextPageToken,items(" + fields + ")"}}
	for {
		body, _, err := b.client.Read(ctx, b.base+"?"+query.Encode(), nil, maxResponse)
		if err != nil {
			return withAdvice(err)
		}
		var page struct {
			Items         []resource
			NextPageToken string
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("the response is not a list of objects: %w", err)
		}
		for _, r := range page.Items {
			if err := each(r.object()); err != nil {
				return err
			}
		}
		if page.NextPageToken == "" {
			return nil
		}
		if page.NextPageToken == query.Get("pageToken") {
			return errors.New("the server returned the same page token twice")
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

func (b *Bucket) address(key string) string { return b.base + "/" + url.PathEscape(key) }

func (b *Bucket) resource(ctx context.Context, key string) (r resource, err error) {
	body, _, err := b.client.Read(ctx, b.address(key)+"?fields="+fields, nil, maxResponse)
	if err != nil {
		return r, withAdvice(err)
	}
	return r, json.Unmarshal(body, &r)
}

// Stat implements store.Store.
func (b *Bucket) Stat(ctx context.Context, key, _ string) (store.Object, store.Sums, error) {
	r, err := b.resource(ctx, key)
	return r.object(), r.sums(), err
}

// Open implements store.Store. Content that is stored compressed is read as it is stored.
func (b *Bucket) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	generation := strings.TrimPrefix(o.ETag, "generation ")
	s, header, err := b.client.OpenAs(ctx, b.address(o.Key)+"?alt=media&ifGenerationMatch="+url.QueryEscape(generation), http.Header{"Accept-Encoding": {"gzip"}}, o, part)
	if err != nil {
		return store.Stream{}, withAdvice(err)
	}
	if now := header.Get("X-Goog-Generation"); now != "" && now != generation {
		_ = s.Body.Close()
		return store.Stream{}, store.ErrChanged
	}
	if part.Length == o.Size {
		s.Sums = sumsOf(header)
	}
	return s, nil
}

// sumsOf returns the checksums in a response's headers. They are of the object as it is stored.
func sumsOf(header http.Header) store.Sums {
	var r resource
	for _, line := range header.Values("X-Goog-Hash") {
		for _, one := range strings.Split(line, ",") {
			switch kind, sum, _ := strings.Cut(strings.TrimSpace(one), "="); kind {
			case "crc32c":
				r.CRC32C = sum
			case "md5":
				r.MD5Hash = sum
			}
		}
	}
	return r.sums()
}

// Parts implements store.Store: checksums are of whole objects.
func (b *Bucket) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

func withAdvice(err error) error {
	return store.WithAdvice(err, "check the credentials and what they permit",
		"there is no bucket or object of this name; to fetch everything below a prefix, end it in a slash")
}
