// Package web reads from HTTP servers for the sources that use HTTP: in ranges that are pinned to one
// state of an object, with credentials that no other host receives, and without a redirect from https
// to http.
package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Config describes how to reach a server.
type Config struct {
	// CAFile holds certificates to trust in addition to the system's.
	CAFile string
	// ReadBuffer is as in NewTransport.
	ReadBuffer int
	// Attempts and Stall are as in fetch.Config; they apply to requests that do not read an object.
	Attempts int
	Stall    time.Duration
	// Origin is the only server that receives what Authorize adds to a request's header, also after a
	// redirect. Without Authorize there are no credentials.
	Origin    *url.URL
	Authorize func(ctx context.Context, header http.Header) error
	// Sign replaces Authorize if credentials depend on the request.
	Sign func(request *http.Request) error
	// Wrap returns the Doer that sends requests through the given client; a nil Wrap leaves the client
	// as it is.
	Wrap func(*http.Client) Doer
}

// A Doer sends requests, as http.Client does.
type Doer interface {
	Do(request *http.Request) (*http.Response, error)
}

// Client sends the requests for one source.
type Client struct {
	http   Doer
	config Config

	mu   sync.Mutex
	seen map[string]string // the state that pins an object's ranges, by key
}

// maxRedirects bounds how many redirects a request follows.
const maxRedirects = 10

// New returns a client. It sends nothing.
func New(config Config) (*Client, error) {
	transport, err := NewTransport(true, config.CAFile, config.ReadBuffer)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: authorized{transport, config},
		CheckRedirect: func(to *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return fmt.Errorf("more than %d redirects", maxRedirects)
			case to.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https":
				return fmt.Errorf("%w: from %s to %s", store.ErrDowngrade, via[len(via)-1].URL.Host, to.URL.Host)
			}
			to.Header.Del("Referer") // it may hold a signature
			return nil
		},
	}
	c := &Client{config: config, seen: map[string]string{}, http: client}
	if config.Wrap != nil {
		c.http = config.Wrap(client)
	}
	return c, nil
}

// Do sends a request with the client's checks and credentials.
func (c *Client) Do(request *http.Request) (*http.Response, error) {
	response, err := c.http.Do(request)
	return response, redacted(err)
}

// authorized adds credentials in the transport, so that none is copied to the target of a redirect.
type authorized struct {
	http.RoundTripper
	config Config
}

// RoundTrip implements http.RoundTripper.
func (a authorized) RoundTrip(request *http.Request) (*http.Response, error) {
	if a.config.Authorize == nil && a.config.Sign == nil || !sameOrigin(request.URL, a.config.Origin) {
		return a.RoundTripper.RoundTrip(request)
	}
	with := request.Clone(request.Context())
	if a.config.Authorize != nil {
		if err := a.config.Authorize(with.Context(), with.Header); err != nil {
			return nil, err
		}
	} else if err := a.config.Sign(with); err != nil {
		return nil, err
	}
	return a.RoundTripper.RoundTrip(with)
}

func sameOrigin(a, b *url.URL) bool {
	return b != nil && a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// Attempts returns how often a request that does not read an object is tried.
func (c *Client) Attempts() int { return c.config.Attempts }

// Request sends a request without a body, and returns a successful response, whose body the caller
// closes. Any other response is a *store.HTTPError.
func (c *Client) Request(ctx context.Context, method, address string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, redacted(err)
	}
	for name, values := range header {
		request.Header[name] = values
	}
	if request.Header.Get("Accept-Encoding") == "" {
		request.Header.Set("Accept-Encoding", "identity")
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 200 && response.StatusCode < 300 {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	return nil, failure(response)
}

// maxErrorText is how much of a response's text an error repeats, in bytes.
const maxErrorText = 300

// failure returns the error of an unsuccessful response. Servers of Hugging Face explain it in a
// header; for others the body is used unless it is HTML.
func failure(response *http.Response) error {
	e := &store.HTTPError{Status: response.StatusCode, Host: response.Request.URL.Host, Message: response.Header.Get("X-Error-Message")}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10)) // it only explains
	if e.Message == "" && !strings.Contains(response.Header.Get("Content-Type"), "html") {
		e.Message = string(text)
	}
	e.Message = strings.Join(strings.Fields(strings.ToValidUTF8(e.Message, "")), " ")
	if len(e.Message) > maxErrorText {
		e.Message = strings.ToValidUTF8(e.Message[:maxErrorText], "") + "…"
	}
	return e
}

// redacted removes possible secrets from an error: the query of a signed URL, and its user.
func redacted(err error) error {
	var wrong *url.Error
	if !errors.As(err, &wrong) {
		return err
	}
	if u, parseErr := url.Parse(wrong.URL); parseErr == nil {
		u.RawQuery, u.User, u.Fragment = "", nil, ""
		return &url.Error{Op: wrong.Op, URL: u.String(), Err: wrong.Err}
	}
	return wrong.Err
}

// Read returns the body, of at most most bytes, and the header of a successful response. It retries
// transient errors.
func (c *Client) Read(ctx context.Context, address string, header http.Header, limit int64) (body []byte, answered http.Header, err error) {
	err = store.Retry(ctx, c.config.Attempts, func(ctx context.Context) error {
		ctx, watchdog, stop := store.WatchStall(ctx, c.config.Stall)
		defer stop()
		response, err := c.Request(ctx, http.MethodGet, address, header)
		if err != nil {
			return store.Cause(ctx, err)
		}
		defer func() { _ = response.Body.Close() }()
		if body, err = io.ReadAll(watchdog.Feed(io.LimitReader(response.Body, limit+1))); err != nil {
			return store.Cause(ctx, redacted(err))
		}
		if int64(len(body)) > limit {
			return &store.Error{Err: fmt.Errorf("the answer of %s has more than %d bytes", response.Request.URL.Host, limit)}
		}
		answered = response.Header
		return nil
	})
	return body, answered, err
}

// Open begins to read a span of the object at address. Its ranges are pinned to the state in the first
// response.
func (c *Client) Open(ctx context.Context, address string, header http.Header, o store.Object, part store.Span) (store.Stream, error) {
	s, _, err := c.OpenAs(ctx, address, header, o, part)
	return s, err
}

// OpenAs is Open that also returns the response's header. Compressed content is refused unless header
// accepts it: a server that is asked for gzip returns content that is stored as gzip unchanged.
func (c *Client) OpenAs(ctx context.Context, address string, header http.Header, o store.Object, part store.Span) (store.Stream, http.Header, error) {
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	ranged, pin := part.Length != o.Size, c.pin(o.Key)
	if ranged {
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", part.Offset, part.End()-1))
		if pin != "" {
			header.Set("If-Range", pin)
		}
	}
	response, err := c.Request(ctx, http.MethodGet, address, header)
	if err != nil {
		return store.Stream{}, nil, err
	}
	packed := response.Header.Get("Content-Encoding")
	s := store.Stream{Body: response.Body, Size: response.ContentLength}
	switch {
	case packed != "" && packed != "identity" && header.Get("Accept-Encoding") != packed:
		err = fmt.Errorf("the server sent compressed content that was not requested: Content-Encoding %q", packed)
	case ranged && response.StatusCode != http.StatusPartialContent:
		err = fmt.Errorf("%w: the server sent the whole object in place of the requested range", store.ErrChanged)
	case ranged:
		s.Size, err = SizeOf(response.Header, part)
	case s.Size < 0: // the end of the body shows its length
		s.Size = o.Size
	}
	if err == nil {
		err = c.checkPin(o.Key, stateOf(response.Header))
	}
	if err != nil {
		_ = response.Body.Close()
		return store.Stream{}, nil, err
	}
	return s, response.Header, nil
}

// SizeOf checks that a response holds the requested range, and returns the size of the whole object.
func SizeOf(header http.Header, part store.Span) (int64, error) {
	raw := header.Get("Content-Range")
	want := fmt.Sprintf("bytes %d-%d/", part.Offset, part.End()-1)
	rest, found := strings.CutPrefix(raw, want)
	size, err := strconv.ParseInt(rest, 10, 64)
	if !found || err != nil {
		return 0, fmt.Errorf("ask for %s: the answer's Content-Range is %q", want, raw)
	}
	return size, nil
}

// Ranges reports whether the server serves ranges of the object at address, and the object's size. It
// discards the state to which the object was pinned.
func (c *Client) Ranges(ctx context.Context, address string, header http.Header, o store.Object) (ranges bool, size int64, err error) {
	c.unpin(o.Key)
	header = header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header.Set("Range", "bytes=0-0")
	response, err := c.Request(ctx, http.MethodGet, address, header)
	if err != nil {
		return false, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusPartialContent {
		return false, response.ContentLength, nil
	}
	size, err = SizeOf(response.Header, store.Span{Offset: 0, Length: 1})
	return true, size, err
}

// stateOf returns the value for If-Range: a strong ETag, or else the time of the last change.
func stateOf(header http.Header) string {
	if tag := header.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return header.Get("Last-Modified")
}

func (c *Client) pin(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[key]
}

func (c *Client) unpin(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.seen, key)
}

// checkPin fails if the state of an object differs from the one seen first.
func (c *Client) checkPin(key, state string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.seen[key]; was != "" && was != state {
		delete(c.seen, key)
		return store.ErrChanged
	}
	c.seen[key] = state
	return nil
}
