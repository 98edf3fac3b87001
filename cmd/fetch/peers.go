package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/fetch"
	"github.com/flexlvm/flexlvm/internal/fetch/peer"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// peerOptions are the flags for peers.
type peerOptions struct {
	addresses    []string
	digest       string
	dir, dataset string
}

// identify adds the flags by which peers authenticate each other.
func (o *peerOptions) identify(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.dir, "peers-dir", "", "directory with the file token, which is the same for all peers")
	f.StringVar(&o.dataset, "peers-dataset", "", "name of the dataset that the token is valid for")
}

func (o *peerOptions) wanted() bool { return len(o.addresses) > 0 || o.digest != "" }

func (o *peerOptions) identity() (*peer.Identity, error) {
	if o.dir == "" {
		return nil, usageError{errors.New("--peers-dir is empty; give the directory with the token of the peers")}
	}
	identity, err := peer.ReadIdentity(o.dir, o.dataset)
	if err != nil {
		return nil, store.Failure(err, false)
	}
	return identity, nil
}

// fromPeers returns config changed to copy from peers.
func (s *session) fromPeers(config fetch.Config) (fetch.Config, error) {
	identity, err := s.peers.identity()
	if err != nil {
		return config, err
	}
	from, err := peer.New(peer.Config{Peers: s.peers.addresses, Index: s.peers.digest, Identity: identity, Stall: s.stall})
	if err != nil {
		return config, err
	}
	return fetch.FromPeers(config, from), nil
}

func serveCommand() *cobra.Command {
	o, address := &options{}, ""
	cmd := &cobra.Command{
		Use:   "serve [flags] DIR",
		Short: "Serve a complete directory to other runs",
		Long: `serve serves the files of DIR, which a run with --index has fetched, to runs with
--peer that have the same token, until SIGTERM. It changes nothing in DIR.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runSession(cmd, func(ctx context.Context, s *session) error { return s.serve(ctx, args[0], address) })
		},
	}
	o.shared(cmd)
	o.peers.identify(cmd)
	cmd.Flags().StringVar(&address, "address", ":8091", "address to listen on for peers")
	cmd.Flags().StringVar(&o.bandwidth, "bandwidth", "0", "maximum rate in bytes per second, such as 100Mi; 0: no limit")
	return cmd
}

func (s *session) serve(ctx context.Context, dir, address string) error {
	identity, err := s.peers.identity()
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return store.Failure(fmt.Errorf("listen on --address %s: %w", address, err), false)
	}
	s.log.WithField("address", listener.Addr().String()).Info("Serving peers")
	if dir, err = s.currentVersion(dir); err != nil {
		return err
	}
	return fetch.ServePeers(ctx, fetch.ServePeersConfig{Dir: dir, Listener: listener, Identity: identity, Bandwidth: s.bandwidth, Stall: s.stall, Log: s.log}, s.progress)
}
