// Package webtest serves files over HTTP to tests, and injects the faults that they ask for.
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

// A Fault handles a request in place of next, or before it; next sends the usual response.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Request is a recorded request.
type Request struct {
	Path, Range, Authorization string
	Header                     http.Header
	// Sent is how many bytes of the body were sent.
	Sent int64
}

// Server serves files by their paths.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	files    map[string][]byte
	handlers map[string]http.HandlerFunc
	fault    Fault
	hold     func(r *http.Request)
	seen     []*Request
}

// New starts a server that ends with the test. A secure server has a certificate that no system trusts.
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

// Put sets the content at a path.
func (s *Server) Put(path string, content []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = content
}

// Handle sets the handler of a path, or of everything below a path that ends in a slash.
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

// Requests returns the requests for a path so far, or all requests if path is empty.
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

// Sent returns how many bytes of a path were sent.
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

// Serve sends content, or ranges of it, with an ETag that changes with the content.
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

// Unwrap lets http.ResponseController find the writer that can flush.
func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// After affects requests for a path: the first bytes of the response's body pass, and then the
// connection breaks, or with hang sends nothing more.
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
	_, _ = b.ResponseWriter.Write(data[:b.left]) // fails only if the client is gone
	_ = http.NewResponseController(b.ResponseWriter).Flush()
	if b.hang {
		<-b.request.Context().Done()
	}
	panic(http.ErrAbortHandler)
}

// Times applies a fault to the first n requests for a path, and to no others.
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

// Status responds with a status.
func Status(code int) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { http.Error(w, "of a test", code) }
}

// Authority returns the certificate of a secure server, in PEM.
func Authority(s *Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
