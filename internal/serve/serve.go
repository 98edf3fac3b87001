// Package serve is the HTTP side of the daemons: /healthz, /readyz and /metrics.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health is how a process tells that it is well.
type Health struct {
	// Check fails where the process should be ended and started again.
	Check func(*http.Request) error
	// Unready is what /readyz says until Ready is called.
	Unready string
}

// Server answers /healthz, /readyz and /metrics.
type Server struct {
	http  *http.Server
	ready atomic.Bool
}

// New makes the server. /healthz answers with health.Check; /readyz fails until
// Ready is called.
func New(metrics prometheus.Gatherer, health Health) *Server {
	s := &Server{}
	unready := errors.New(health.Unready)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, health.Check(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			answer(w, unready)
			return
		}
		answer(w, nil)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
	}
	return s
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Ready lets /readyz succeed.
func (s *Server) Ready() { s.ready.Store(true) }

// Listen takes the address, so that a port in use is told at start, and serves
// until Close.
func (s *Server) Listen(ctx context.Context, address string) (net.Addr, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for health checks and metrics (choose another --address): %w", err)
	}
	go func() { _ = s.http.Serve(listener) }() // ends with ErrServerClosed at Close
	return listener.Addr(), nil
}

// Close ends the server, giving answers that have begun a moment.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return fmt.Errorf("stop answering health checks: %w", err)
	}
	return nil
}
