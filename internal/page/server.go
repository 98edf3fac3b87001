package page

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Config configures a Server.
type Config struct {
	Source Source
	Title  string           // name of the cluster
	Now    func() time.Time // time.Now if nil
}

// A Server serves the page to clients that know its token.
type Server struct {
	source   Source
	title    string
	now      func() time.Time
	digester *digester
	token    string
	// Intervals of events: atMost is the minimum between two, beat that of keep-alives.
	atMost, beat time.Duration
}

// New returns a server with a new token.
func New(c Config) *Server {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Server{
		source: c.Source, title: c.Title, now: c.Now, digester: &digester{source: c.Source, now: c.Now},
		token: rand.Text(), atMost: time.Second, beat: staleAfter,
	}
}

// Listen listens on a port that only this machine can reach; 0 selects a free port.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen: %w; choose another port with --port", err)
	}
	return l, nil
}

// URL returns the URL of the page. The token is part of the path, because a browser sends a cookie to every
// port of the machine but a path only to this server.
func (s *Server) URL(l net.Listener) string {
	return "http://" + l.Addr().String() + "/" + s.token + "/"
}

// Serve serves requests until the context is done.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the streams of events with ctx
	}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() }) // requests only read, and the browser repeats them
	defer stopped()
	if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// policy allows only resources from this server, and no inline scripts or styles.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
	} {
		w.Header().Set(name, value)
	}
	if !ours(r.Host) {
		http.Error(w, "this page is served only at 127.0.0.1", http.StatusMisdirectedRequest)
		return
	}
	token, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
		http.Error(w, "open the URL that kubectl flexlvm ui printed", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this page is read-only", http.StatusMethodNotAllowed)
		return
	}
	switch path {
	case "":
		s.page(w, r)
	case "events":
		s.events(w, r)
	case "page.css", "page.js", "icon.svg":
		http.ServeFileFS(w, r, assets, "assets/"+path)
	default:
		http.NotFound(w, r)
	}
}

// ours reports whether a request addresses this machine by a local name. Another name that resolves to this
// machine comes from a foreign page (DNS rebinding). The port may differ, behind ssh -L.
func ours(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return name == "127.0.0.1" || name == "localhost"
}

func (s *Server) page(w http.ResponseWriter, r *http.Request) {
	q, now := queryOf(r.URL.Query()), s.now()
	d := s.digester.get()
	view := pageView{Title: s.title, Query: q, Live: liveOf(d, q, now), Time: now.Format(time.TimeOnly)}
	if q.Search != "" {
		view.Found = s.find(r.Context(), d, q.Search, now)
	}
	if q.Claim != "" {
		view.Plan = s.whatIf(r.Context(), d, q, now)
	}
	var out bytes.Buffer
	if err := render(&out, "page.html", view); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(out.Bytes()) // the client is gone
}
