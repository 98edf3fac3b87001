package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
)

// review reports whether the bearer of a token may get /metrics: nil, errUnknown,
// errForbidden, or why that could not be found out.
type review func(ctx context.Context, token string) error

// errUnknown: nobody has this token.
var errUnknown = errors.New("not authenticated: send a token of this cluster as a bearer token")

// errForbidden: who has this token may not read metrics.
var errForbidden = errors.New("not authorized to get /metrics; the ClusterRole flexlvm-metrics-reader allows it")

// How long an answer of the API server is cached, how many are, and how many requests may
// be in flight: senders of tokens must not load the API server.
const (
	allowedFor   = time.Minute
	refusedFor   = 10 * time.Second
	mostVerdicts = 256
	mostReviews  = 2
)

// A guard lets those through whom review does.
type guard struct {
	review review
	next   http.Handler
	asking chan struct{}

	mu    sync.Mutex
	known map[[sha256.Size]byte]verdict
}

type verdict struct {
	err   error // nil, errUnknown or errForbidden
	until time.Time
}

func newGuard(r review, next http.Handler) *guard {
	return &guard{review: r, next: next, asking: make(chan struct{}, mostReviews), known: map[[sha256.Size]byte]verdict{}}
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	err := errUnknown
	if token = strings.TrimSpace(token); strings.EqualFold(scheme, "Bearer") && token != "" {
		err = g.ask(r.Context(), token)
	}
	switch {
	case err == nil:
		g.next.ServeHTTP(w, r)
	case errors.Is(err, errUnknown):
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, errUnknown.Error(), http.StatusUnauthorized)
	case errors.Is(err, errForbidden):
		http.Error(w, errForbidden.Error(), http.StatusForbidden)
	default: // what it was is not for those of whom nothing is known
		http.Error(w, "cannot find out who may read metrics; try again later", http.StatusServiceUnavailable)
	}
}

var errBusy = errors.New("too many tokens are being reviewed")

func (g *guard) ask(ctx context.Context, token string) error {
	key := sha256.Sum256([]byte(token))
	if v, ok := g.remembered(key); ok {
		return v.err
	}
	select {
	case g.asking <- struct{}{}:
		defer func() { <-g.asking }()
	default:
		return errBusy
	}
	err := g.review(ctx, token)
	switch {
	case err == nil:
		g.remember(key, verdict{nil, time.Now().Add(allowedFor)})
	case errors.Is(err, errUnknown), errors.Is(err, errForbidden):
		g.remember(key, verdict{err, time.Now().Add(refusedFor)})
	}
	return err
}

func (g *guard) remembered(key [sha256.Size]byte) (verdict, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v, ok := g.known[key]
	return v, ok && time.Now().Before(v.until)
}

// remember keeps a verdict. Where there are too many, those that have expired go, then
// those that refuse: they are what strangers can make more of.
func (g *guard) remember(key [sha256.Size]byte, v verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= mostVerdicts {
		now := time.Now()
		for old, o := range g.known {
			if o.err != nil || now.After(o.until) {
				delete(g.known, old)
			}
		}
	}
	if len(g.known) < mostVerdicts {
		g.known[key] = v
	}
}
