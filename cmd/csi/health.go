package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// probePatience is how long the driver may take to say that it is there.
const probePatience = 5 * time.Second

// serveHealth answers /healthz on an address: whether the driver answers on its socket, as
// kubelet would ask it. kubelet cannot run a program for that in the container, whose
// process has left its namespaces.
func serveHealth(ctx context.Context, address, socket string) (end func() error, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for health checks (choose another --health-address): %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := probe(r.Context(), socket); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{Handler: mux, ReadTimeout: probePatience, WriteTimeout: 2 * probePatience, MaxHeaderBytes: 16 << 10}
	go func() { _ = server.Serve(listener) }() // ends with ErrServerClosed at the end
	return server.Close, nil
}

// probe asks the driver that serves the socket whether it is ready.
func probe(ctx context.Context, socket string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}); err != nil {
		return fmt.Errorf("probe %s: %w", socket, err)
	}
	return nil
}
