// Package azurestore reads blobs from Azure Blob Storage through its REST API.
package azurestore

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
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
	// Endpoint is the URL of the account's containers; empty for https://ACCOUNT.blob.core.windows.net.
	Endpoint string
	// CredentialsDir is a directory with a file accountKey or sasToken; empty for the
	// environment: AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN, or a workload identity.
	CredentialsDir string
	Anonymous      bool
}

// Container is a Store of one container.
type Container struct {
	client *web.Client
	source store.Source
	base   *url.URL
	keys   keys
	stall  time.Duration
}

var (
	accountName   = regexp.MustCompile(`^[a-z0-9]{3,24}$`)
	containerName = regexp.MustCompile(`^([a-z0-9](-?[a-z0-9])+|\$root|\$web)$`)
)

// Parse parses what follows azblob:// in a source.
func Parse(s *store.Source, rest string) error {
	account, rest, _ := strings.Cut(rest, "/")
	container, key, _ := strings.Cut(rest, "/")
	if !accountName.MatchString(account) || !containerName.MatchString(container) {
		return errors.New("names no container; give azblob://account/container/key")
	}
	s.Bucket, s.Key = account+"/"+container, key
	return nil
}

// New returns the Store of an azblob:// source. It sends nothing yet.
func New(source store.Source, config Config) (store.Store, error) {
	account, container, _ := strings.Cut(source.Bucket, "/")
	base, err := url.Parse(strings.TrimRight(cmp.Or(config.Endpoint, "https://"+account+".blob.core.windows.net"), "/"))
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, store.Usage(errors.New("--endpoint is not of the form http[s]://host[:port][/account]"))
	}
	c := &Container{source: source, base: base.JoinPath(container), stall: config.Stall, keys: keys{account: account, dir: config.CredentialsDir, anonymous: config.Anonymous}}
	if c.keys.tokens, err = identity(config.Config); err != nil {
		return nil, store.Usage(err)
	}
	config.Origin, config.Sign = base, c.keys.sign
	if c.client, err = web.New(config.Config); err != nil {
		return nil, store.Usage(err)
	}
	return c, nil
}

// header returns the headers of every request.
func header() http.Header { return http.Header{"X-Ms-Version": {"2021-12-02"}} }

// blob is an entry of a listing.
type blob struct {
	Name struct {
		Encoded bool   `xml:"Encoded,attr"`
		Text    string `xml:",chardata"`
	}
	Properties struct {
		Size         int64  `xml:"Content-Length"`
		ETag         string `xml:"Etag"`
		MD5          string `xml:"Content-MD5"`
		Modified     string `xml:"Last-Modified"`
		ResourceType string `xml:"ResourceType"`
	}
}

// object returns the object of a blob; false for a directory, which some accounts have.
func (b blob) object() (store.Object, bool, error) {
	name := b.Name.Text
	if b.Name.Encoded {
		var err error
		if name, err = url.PathUnescape(name); err != nil {
			return store.Object{}, false, fmt.Errorf("read the name of a blob: %w", err)
		}
	}
	modified, _ := http.ParseTime(b.Properties.Modified) // informative only
	return store.Object{Key: name, Size: b.Properties.Size, ETag: tag(b.Properties.ETag), Modified: modified}, b.Properties.ResourceType != "directory", nil
}

// tag returns an ETag without quotes. It identifies a state, and is not a hash.
func tag(etag string) string { return strings.Trim(etag, `"`) }

const maxResponse = 64 * store.MiB

// List implements store.Store.
func (c *Container) List(ctx context.Context, each func(store.Object) error) error {
	if c.source.Single() {
		o, _, err := c.Stat(ctx, c.source.Key, "")
		if err != nil {
			return err
		}
		return each(o)
	}
	query := url.Values{"restype": {"container"}, "comp": {"list"}, "prefix": {c.source.ListPrefix()}}
	for {
		address := *c.base
		address.RawQuery = query.Encode()
		body, _, err := c.client.Read(ctx, address.String(), header(), maxResponse)
		if err != nil {
			return withAdvice(err)
		}
		var page struct {
			Blobs      []blob `xml:"Blobs>Blob"`
			NextMarker string
		}
		if err := xml.Unmarshal(body, &page); err != nil {
			return fmt.Errorf("the response is not a list of blobs: %w", err)
		}
		for _, b := range page.Blobs {
			o, is, err := b.object()
			if err == nil && is {
				err = each(o)
			}
			if err != nil {
				return err
			}
		}
		if page.NextMarker == "" {
			return nil
		}
		if page.NextMarker == query.Get("marker") {
			return errors.New("the server returned the same page token twice")
		}
		query.Set("marker", page.NextMarker)
	}
}

func (c *Container) address(key string) string {
	u := *c.base
	u.Path, u.RawPath = c.base.Path+"/"+key, c.base.EscapedPath()+"/"+escape(key)
	return u.String()
}

// escape escapes a key, except for its slashes.
func escape(key string) string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// Stat implements store.Store.
func (c *Container) Stat(ctx context.Context, key, _ string) (o store.Object, sums store.Sums, err error) {
	err = store.Retry(ctx, c.client.Attempts(), func(ctx context.Context) error {
		ctx, _, stop := store.WatchStall(ctx, c.stall)
		defer stop()
		response, err := c.client.Request(ctx, http.MethodHead, c.address(key), header())
		if err != nil {
			return store.Cause(ctx, err)
		}
		defer func() { _ = response.Body.Close() }()
		modified, _ := http.ParseTime(response.Header.Get("Last-Modified")) // informative only
		o = store.Object{Key: key, Size: response.ContentLength, ETag: tag(response.Header.Get("ETag")), Modified: modified.Truncate(time.Second)}
		sums = sumsOf(response.Header.Get("Content-MD5"))
		return nil
	})
	return o, sums, withAdvice(err)
}

// sumsOf returns the checksums of a blob: the MD5 that the uploader has set, if any.
func sumsOf(md5 string) store.Sums {
	s := store.Sums{Opaque: true}
	if sum, err := base64.StdEncoding.DecodeString(md5); err == nil && len(sum) == 16 {
		s.MD5 = hex.EncodeToString(sum)
	}
	return s
}

// Open implements store.Store.
func (c *Container) Open(ctx context.Context, o store.Object, part store.Span) (store.Stream, error) {
	h := header()
	h.Set("If-Match", `"`+o.ETag+`"`)
	h.Set("Accept-Encoding", "gzip") // compressed content is read as it is stored
	s, answered, err := c.client.OpenAs(ctx, c.address(o.Key), h, o, part)
	if err != nil {
		return store.Stream{}, withAdvice(err)
	}
	if tag(answered.Get("ETag")) != o.ETag {
		_ = s.Body.Close()
		return store.Stream{}, store.ErrChanged
	}
	s.Sums = store.Sums{Opaque: true}
	if part.Length == o.Size {
		s.Sums = sumsOf(answered.Get("Content-MD5"))
	}
	return s, nil
}

// Parts implements store.Store: blobs have an MD5 of the whole or none.
func (c *Container) Parts(context.Context, store.Object, int) ([]int64, error) { return nil, nil }

func withAdvice(err error) error {
	return store.WithAdvice(err, "check the credentials and what they permit",
		"there is no container or blob of this name, or it is not public; to fetch everything below a prefix, end it in a slash")
}
