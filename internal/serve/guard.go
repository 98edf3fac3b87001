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

// review returns nil if the bearer of a token may get /metrics, errUnknown, errForbidden, or why the API server
// could not answer.
type review func(ctx context.Context, token string) error

// errUnknown means that the token is not valid.
var errUnknown = errors.New("not authenticated: send a token of this cluster as a bearer token")

// errForbidden means that the bearer of the token may not read metrics.
var errForbidden = errors.New("not authorized to get /metrics; the ClusterRole flexlvm-metrics-reader allows it")

// How long a verdict of the API server is cached, how many verdicts are cached, and how many reviews may be in
// flight: clients that send tokens must not load the API server.
const (
	allowedFor  = time.Minute
	refusedFor  = 10 * time.Second
	maxVerdicts = 256
	maxReviews  = 2
)

// A guard passes on the requests that review allows.
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
	return &guard{review: r, next: next, asking: make(chan struct{}, maxReviews), known: map[[sha256.Size]byte]verdict{}}
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
	default: // the cause is not for clients that are not authenticated
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

// remember caches a verdict. If there are too many, it deletes those that have expired and those that refuse,
// of which strangers can cause any number.
func (g *guard) remember(key [sha256.Size]byte, v verdict) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.known) >= maxVerdicts {
		now := time.Now()
		for old, o := range g.known {
			if o.err != nil || now.After(o.until) {
				delete(g.known, old)
			}
		}
	}
	if len(g.known) < maxVerdicts {
		g.known[key] = v
	}
}
