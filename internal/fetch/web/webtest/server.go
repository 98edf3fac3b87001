// Package webtest serves files over HTTP to tests, and does to requests what they ask for.
package webtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Fault is what happens to a request in place of, or before, an answer; next answers it.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Request is what was seen of one.
type Request struct {
	Path, Range, Authorization string
	Header                     http.Header
	// Sent is how many bytes of a body were given.
	Sent int64
}

// Server has files by their paths.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	files    map[string][]byte
	handlers map[string]http.HandlerFunc
	fault    Fault
	hold     func(r *http.Request)
	seen     []*Request
}

// New starts a server that ends with the test; secure ones have a certificate that no
// system trusts.
func New(t *testing.T, secure bool) *Server {
	t.Helper()
	s := &Server{files: map[string][]byte{}, handlers: map[string]http.HandlerFunc{}}
	if secure {
		s.Server = httptest.NewTLSServer(s)
	} else {
		s.Server = httptest.NewServer(s)
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Put sets what is at a path.
func (s *Server) Put(path string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = content
}

// Handle sets who answers for a path, or for all below one that ends in a slash.
func (s *Server) Handle(path string, h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[path] = h
}

// Inject sets the fault of all requests; nil is none.
func (s *Server) Inject(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// HoldAfter blocks the bodies of all answers once so many bytes of a path were sent, or of all paths if it
// is empty, until release is called or the client is gone.
func (s *Server) HoldAfter(path string, bytes int64) (release func()) {
	released := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = func(r *http.Request) {
		if s.Sent(path) < bytes {
			return
		}
		select {
		case <-released:
		case <-r.Context().Done():
		}
	}
	return sync.OnceFunc(func() { close(released) })
}

// Requests are those of a path so far, or all.
func (s *Server) Requests(path string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Request
	for _, r := range s.seen {
		if path == "" || r.Path == path {
			out = append(out, *r)
		}
	}
	return out
}

// Sent is how many bytes were given of a path.
func (s *Server) Sent(path string) (sum int64) {
	for _, r := range s.Requests(path) {
		sum += r.Sent
	}
	return sum
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := &Request{Path: r.URL.Path, Range: r.Header.Get("Range"), Authorization: r.Header.Get("Authorization"), Header: r.Header.Clone()}
	s.mu.Lock()
	s.seen = append(s.seen, record)
	fault, hold := s.fault, s.hold
	s.mu.Unlock()
	counted := &counter{ResponseWriter: w, add: func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		record.Sent += int64(n)
	}, hold: func() {
		if hold != nil {
			hold(r)
		}
	}}
	if fault == nil {
		s.answer(counted, r)
		return
	}
	fault(counted, r, http.HandlerFunc(s.answer))
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	content, is := s.files[r.URL.Path]
	handler := s.handlers[r.URL.Path]
	longest := ""
	for path, h := range s.handlers {
		if s.handlers[r.URL.Path] == nil && strings.HasSuffix(path, "/") && strings.HasPrefix(r.URL.Path, path) && len(path) > len(longest) {
			handler, longest = h, path
		}
	}
	s.mu.Unlock()
	switch {
	case handler != nil:
		handler(w, r)
	case is:
		Serve(w, r, content)
	default:
		http.NotFound(w, r)
	}
}

// Serve answers with content, in ranges, and with an ETag that changes with it.
func Serve(w http.ResponseWriter, r *http.Request, content []byte) {
	sum := sha256.Sum256(content)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

type counter struct {
	http.ResponseWriter
	add  func(int)
	hold func()
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.add(n)
	c.hold()
	return n, err
}

// Unwrap lets http.ResponseController find what can flush.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// After hits requests of a path: the first so many bytes of the answer's body pass, and
// then the connection breaks, or with hang says nothing more.
func After(path string, bytes int, hang bool) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == path {
			w = &broken{ResponseWriter: w, request: r, left: bytes, hang: hang}
		}
		next.ServeHTTP(w, r)
	}
}

type broken struct {
	http.ResponseWriter
	request *http.Request
	left    int
	hang    bool
}

func (b *broken) Write(data []byte) (int, error) {
	if len(data) <= b.left {
		n, err := b.ResponseWriter.Write(data)
		b.left -= n
		return n, err
	}
	_, _ = b.ResponseWriter.Write(data[:b.left]) // the client is gone, if anything
	_ = http.NewResponseController(b.ResponseWriter).Flush()
	if b.hang {
		<-b.request.Context().Done()
	}
	panic(http.ErrAbortHandler)
}

// Times has a fault hit so many requests of a path, and leaves the others alone.
func Times(n int, path string, f Fault) Fault {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		hit := n > 0 && r.URL.Path == path
		if hit {
			n--
		}
		mu.Unlock()
		if !hit {
			next.ServeHTTP(w, r)
			return
		}
		f(w, r, next)
	}
}

// Status answers with a status.
func Status(code int) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, "of a test", code) }
}

// Authority is the certificate of a secure server, in PEM.
func Authority(s *Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
