package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/flexlvm/flexlvm/internal/csicontroller"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/version"
)

// sidecars serves CSI's sidecars, each on its own socket if one is configured.
type sidecars struct {
	options
	gate            csicontroller.Gate // open while snapshots are served
	snapshotService csicontroller.Snapshots
}

// serve runs as long as this process, with or without the lease, because a sidecar terminates if there is no
// socket or its connection breaks.
func (s *sidecars) serve(ctx context.Context, c clients) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { // keeps Wait from returning if there is no socket
		<-ctx.Done()
		return nil
	})
	serve := func(socket string, cfg csicontroller.Config) {
		if socket == "" {
			return
		}
		cfg.Socket, cfg.Version, cfg.Volumes = socket, version.String, c.modify.CoreV1().PersistentVolumes()
		group.Go(func() error { return csicontroller.Serve(ctx, cfg) })
	}
	serve(s.socket, csicontroller.Config{})
	serve(s.snapshots, csicontroller.Config{Snapshots: &s.snapshotService, Gate: &s.gate})
	return group.Wait()
}

// lead serves snapshots until ctx is done, while this process has the lease and the ledger. It returns once the
// last call has ended, so that no room is promised after the lease is released. The calls end with ctx, well
// before provision.Work stops waiting.
func (s *sidecars) lead(ctx context.Context, seen provision.Listers, ledger *ledger.Ledger) error {
	s.snapshotService = csicontroller.Snapshots{Room: ledger, Seen: seen.Volumes.Get, Now: time.Now}
	s.gate.Open(ctx)
	return nil
}
