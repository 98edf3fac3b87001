package fetch

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/flexlvm/flexlvm/internal/fetch/peer"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// ServePeersConfig describes what to serve to peers, and how.
type ServePeersConfig struct {
	// Dir is a directory that a run with Config.Index has completed. It is only read.
	Dir string
	// Listener accepts the connections of peers, and nothing else.
	Listener net.Listener
	Identity *peer.Identity
	// Bandwidth bounds the bytes per second of all responses together; 0 is no limit.
	Bandwidth int64
	Stall     time.Duration
	Log       logrus.FieldLogger
}

// ServePeers serves a complete directory until ctx ends.
func ServePeers(ctx context.Context, c ServePeersConfig, progress *Progress) error {
	err := c.serve(ctx, progress)
	if err != nil {
		err = failed(err)
		progress.Fail(err.Error(), false)
	}
	return err
}

func (c ServePeersConfig) serve(ctx context.Context, progress *Progress) error {
	returned := store.TrackCall(ctx, "opening", c.Dir)
	root, err := os.OpenRoot(c.Dir)
	returned()
	if err != nil {
		return store.Failure(fmt.Errorf("open directory: %w", err), false)
	}
	defer func() { _ = root.Close() }() // it was only read
	entries, err := readManifest(c.Dir)
	if err != nil {
		return store.Failure(fmt.Errorf("read the manifest: %w", err), false)
	}
	index, err := completeIndex(root, entries)
	if err != nil {
		return store.Failure(err, false)
	}
	data, digest, err := index.Encode()
	if err != nil {
		return store.Failure(err, false)
	}
	limit := &bandwidth{perSecond: c.Bandwidth}
	server := &peer.Server{Index: data, Open: opens(root, entries), Throttle: limit.wait, Stall: c.Stall, Log: c.Log}
	progress.setIndex(digest)
	progress.set(protocol.StateComplete, "serving "+formatFiles(len(entries))+" to peers")
	return server.Serve(ctx, c.Listener, c.Identity)
}

// opens returns a function that opens files of a manifest that are unchanged since they were fetched.
func opens(root *os.Root, entries map[string]Entry) func(string) (*os.File, error) {
	return func(path string) (*os.File, error) {
		e, known := entries[path]
		if !known {
			return nil, fmt.Errorf("open %q: it is not in the manifest: %w", path, fs.ErrNotExist)
		}
		file, err := root.Open(path)
		if err != nil {
			return nil, err
		}
		info, err := file.Stat()
		if err == nil && !e.describes(info) {
			err = fmt.Errorf("open %q: it was changed since it was fetched", path)
		}
		if err != nil {
			_ = file.Close() // it was only read
			return nil, err
		}
		return file, nil
	}
}

// FromPeers turns the config of a run from a source into one that copies the same files from peers. The
// new run verifies every file, whatever the old one required, and gives up early, because the source is
// still available.
func FromPeers(c Config, peers *peer.Store) Config {
	c.Source = store.Source{URL: c.Source.URL, Kind: c.Source.Kind, Name: c.Source.Name}
	c.Store, c.Checksum, c.Attempts, c.Index = peers, ChecksumRequired, peerAttempts, true
	return c
}

// peerAttempts is how often a file is requested: one of several peers may serve wrong content.
const peerAttempts = 4
