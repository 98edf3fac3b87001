package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/flexlvm/flexlvm/test/bench/control"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

// ofNFS prints the figures of the NFS provisioner.
func ofNFS(ctx context.Context, dir string) error {
	provisioner := filepath.Join(dir, "provisioner")
	if err := build(ctx, provisioner, "./cmd/provisioner"); err != nil {
		return err
	}
	table, err := control.RunNFS(ctx, provisioner, dir, os.Stderr)
	if err != nil {
		return fmt.Errorf("the figures of the provisioner of NFS: %w", err)
	}
	fmt.Printf("\n%s\n%s\n", figure.Header, strings.Join(table, "\n"))
	return nil
}
