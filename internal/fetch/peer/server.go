package peer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/sirupsen/logrus"
)

// Paths of a peer's server.
const (
	indexPath = "/index"
	filePath  = "/file"
	pathQuery = "path"
)

const (
	// maxRequests bounds the requests that a peer serves concurrently. It answers further ones with
	// 503.
	maxRequests = 256
	headerTime  = 5 * time.Second // for TLS and the request
	idleTime    = time.Minute
	maxHeader   = 16 << 10 // bytes
)

// Server serves a complete directory to other nodes. It writes nothing.
type Server struct {
	// Index is the encoded index of the directory.
	Index []byte
	// Open opens a file of the index; it fails for any other path, and for a file that has changed
	// since it was fetched.
	Open func(path string) (*os.File, error)
	// Throttle waits until so many bytes may be sent.
	Throttle func(ctx context.Context, bytes int64) error
	// Stall is how long a client may take for the next 64 KiB; 0 is no limit.
	Stall time.Duration
	Log   logrus.FieldLogger
	// MaxRequests is how many requests are served concurrently; 0 is maxRequests.
	MaxRequests int

	requests chan struct{}
}

// Serve serves on a listener until ctx ends, only to peers with the same identity.
func (s *Server) Serve(ctx context.Context, listener net.Listener, identity *Identity) error {
	silent := stdlog.New(io.Discard, "", 0) // any number of strangers may connect
	server := &http.Server{
		Handler: s.handler(), ErrorLog: silent,
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(tls.NewListener(listener, identity.tls())); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve peers: %w", err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	s.requests = make(chan struct{}, cmp.Or(s.MaxRequests, maxRequests))
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+indexPath, s.bounded(s.index))
	mux.HandleFunc("GET "+filePath, s.bounded(s.file))
	return mux
}

// bounded rejects a request while too many others are served.
func (s *Server) bounded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.requests <- struct{}{}:
			defer func() { <-s.requests }()
			// The deadline of the connection's last request may have passed.
			if err := s.extend(http.NewResponseController(w)); err == nil {
				next(w, r)
			}
		default:
			http.Error(w, "too many requests at once", http.StatusServiceUnavailable)
		}
	}
}

func (s *Server) index(w http.ResponseWriter, r *http.Request) {
	s.send(w, r, bytes.NewReader(s.Index))
}

func (s *Server) file(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get(pathQuery)
	file, err := s.Open(path)
	if err != nil {
		s.Log.WithError(err).WithField("path", path).Warn("A peer asked for a file that cannot be served")
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	defer func() { _ = file.Close() }() // it was only read
	s.send(w, r, file)
}

// send responds with content, or with the requested range of it.
func (s *Server) send(w http.ResponseWriter, r *http.Request, content io.ReadSeeker) {
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, &paced{content, r.Context(), http.NewResponseController(w), s})
}

// paced reads content no faster than it may be sent, and sets a deadline for the client before each
// portion.
type paced struct {
	io.ReadSeeker
	ctx    context.Context
	answer *http.ResponseController
	server *Server
}

func (p *paced) Read(data []byte) (int, error) {
	if p.server.Throttle != nil {
		if err := p.server.Throttle(p.ctx, int64(len(data))); err != nil {
			return 0, err
		}
	}
	if err := p.server.extend(p.answer); err != nil {
		return 0, err
	}
	return p.ReadSeeker.Read(data)
}

// extend resets the client's deadline for its next portion.
func (s *Server) extend(answer *http.ResponseController) error {
	if s.Stall <= 0 {
		return nil
	}
	if err := answer.SetWriteDeadline(time.Now().Add(s.Stall)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	return nil
}
