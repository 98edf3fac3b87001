package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/flexlvm/flexlvm/test/bench/figure"
	"github.com/flexlvm/flexlvm/test/bench/peers"
)

// ofPeers prints how long it takes to fill many nodes that copy from each other.
func ofPeers(ctx context.Context, dir string) error {
	loader := filepath.Join(dir, "fetch")
	if err := build(ctx, loader, "./cmd/fetch"); err != nil {
		return err
	}
	lines, err := peers.Run(ctx, peers.Config{Loader: loader, Dir: dir, Rounds: *rounds, Log: os.Stderr})
	if err != nil {
		return fmt.Errorf("the figures of copies from peers: %w", err)
	}
	fmt.Printf("\n%s\n%s\n", figure.Header, strings.Join(lines, "\n"))
	return nil
}
