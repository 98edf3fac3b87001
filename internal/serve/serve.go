// Package serve serves /healthz, /readyz and /metrics of the daemons over HTTP. By default it answers anybody
// who reaches the port, so it ensures that any number of requests costs the daemon little.
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/rest"
)

// Limits of one listener. A daemon has one kubelet and one or two Prometheus servers; other clients must not
// use up its memory. With 4,096 connections in the kernel's queue (net.core.somaxconn), a probe with a timeout
// of five seconds is still answered in time.
const (
	maxConnections = 256
	pace           = time.Millisecond
	maxScrapes     = 2        // at the same time; others get 503
	maxHeaderBytes = 16 << 10 // bytes; a token of a service account has 1 to 2 KiB
	readTimeout    = 5 * time.Second
	writeTimeout   = 10 * time.Second // Prometheus does not wait longer either
	idleTimeout    = time.Minute      // Prometheus keeps its connection open
)

// Health is the health of a process.
type Health struct {
	// Check returns an error if the process should be restarted.
	Check func(*http.Request) error
	// Unready returns the message of /readyz until Server.Ready is called.
	Unready func() string
}

// Server answers /healthz, /readyz and /metrics.
type Server struct {
	health  http.Handler
	metrics http.Handler
	servers []*http.Server
	ready   atomic.Bool
}

// New returns a server. /healthz returns the result of health.Check; /readyz fails until Ready is called.
func New(metrics prometheus.Gatherer, health Health) *Server {
	s := &Server{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, health.Check(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.ready.Load() {
			answer(w, errors.New(health.Unready()))
			return
		}
		answer(w, nil)
	})
	s.health = mux
	// A compressor needs more memory than the data that it compresses.
	s.metrics = limitConcurrent(maxScrapes, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{DisableCompression: true}))
	return s
}

// limitConcurrent lets at most this many requests through at the same time. Others get 503 and have to retry on
// another connection: whatever else they have sent on this one is not even read.
func limitConcurrent(limit int, next http.Handler) http.Handler {
	inside := make(chan struct{}, limit)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case inside <- struct{}{}:
			defer func() { <-inside }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Connection", "close")
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d scrapes are being answered; try again later", limit), http.StatusServiceUnavailable)
		}
	})
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Ready makes /readyz succeed.
func (s *Server) Ready() { s.ready.Store(true) }

// Addresses are the addresses that a server listens on.
type Addresses struct {
	Metrics string
	Health  string
}

// Listen listens on the addresses, so that a port in use is reported at start, and serves until Close. If
// o.Auth is set, tokens are reviewed by the API server of config; otherwise config may be nil.
func (s *Server) Listen(ctx context.Context, o Options, config *rest.Config) (at Addresses, err error) {
	if err := o.Check(); err != nil {
		return at, err
	}
	handler, secret := http.NewServeMux(), (*tls.Config)(nil)
	if o.Auth {
		certificate, err := certificates(o.CertFile, o.KeyFile)
		if err != nil {
			return at, err
		}
		review, err := byAPIServer(config)
		if err != nil {
			return at, err
		}
		secret = &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12}
		handler.Handle("GET /metrics", newGuard(review, s.metrics))
	} else {
		handler.Handle("GET /metrics", s.metrics)
		handler.Handle("/", s.health)
	}
	if at.Metrics, err = s.listen(ctx, "address", o.Address, secret, handler); err != nil {
		return at, err
	}
	at.Health = at.Metrics
	if o.HealthAddress == "" {
		return at, nil
	}
	if at.Health, err = s.listen(ctx, "health-address", o.HealthAddress, nil, s.health); err != nil {
		return at, errors.Join(err, s.Close())
	}
	return at, nil
}

// listen serves on one address.
func (s *Server) listen(ctx context.Context, flag, address string, secret *tls.Config, handler http.Handler) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return "", fmt.Errorf("listen for health checks and metrics (choose another --%s): %w", flag, err)
	}
	listener = newBounded(listener, maxConnections, pace)
	server := &http.Server{
		Handler:        handler,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		TLSConfig:      secret,
		BaseContext:    func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	// HTTP/1 only: a single HTTP/2 connection could carry many requests at the same time.
	server.Protocols = &http.Protocols{}
	server.Protocols.SetHTTP1(true)
	serve := server.Serve
	if secret != nil {
		server.ErrorLog = log.New(io.Discard, "", 0) // each failed handshake would be logged
		serve = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	s.servers = append(s.servers, server)
	go func() { _ = serve(listener) }() // ends with ErrServerClosed at Close
	return listener.Addr().String(), nil
}

// Close stops the server on all addresses, and gives running responses up to three seconds to finish.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var errs []error
	for _, server := range s.servers {
		if err := server.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop answering health checks: %w", err))
		}
	}
	return errors.Join(errs...)
}
