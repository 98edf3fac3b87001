// Package oci starts a real registry for tests.
package oci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/served"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Registry is a running registry without authentication.
type Registry struct {
	// Host is its host:port.
	Host string

	program *served.Program
	dir     string
}

// Start builds what is missing, starts a registry and returns once it responds. It logs a line before a long build.
func Start(ctx context.Context, cfg served.Config, log io.Writer) (*Registry, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	binary, err := built.Module(ctx, filepath.Join(root, "test/oci/server"), "crane", "github.com/google/go-containerregistry/cmd/crane", log)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "flexlvm-registry-")
	if err != nil {
		return nil, fmt.Errorf("start registry: %w", err)
	}
	program, err := served.Start(ctx, cfg, "/v2/", func(address string) []string {
		return []string{binary, "registry", "serve", "--address", address, "--disk", dir}
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return &Registry{Host: program.Address, program: program, dir: dir}, nil
}

// Stop kills the registry and removes its data.
func (r *Registry) Stop() error { return errors.Join(r.program.Stop(), os.RemoveAll(r.dir)) }
