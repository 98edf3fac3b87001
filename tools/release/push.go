package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push copies the image in an archive of writeOCI to a registry and returns the reference with its digest. It uses
// the credentials of `docker login`.
func push(ctx context.Context, archive string, to name.Tag) (string, error) {
	dir, err := os.MkdirTemp("", "flexlvm-push-")
	if err != nil {
		return "", fmt.Errorf("push %s: %w", archive, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := unpack(archive, dir); err != nil {
		return "", err
	}
	index, err := onlyIndex(dir)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", archive, err)
	}
	if err := remote.WriteIndex(to, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("push %s: %w", to, err)
	}
	return to.Context().Digest(digest.String()).String(), nil
}

// onlyIndex returns the only index in the image layout in dir.
func onlyIndex(dir string) (v1.ImageIndex, error) {
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("it holds %d images instead of one", len(manifest.Manifests))
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}

// unpack extracts the files of an archive below dir, and rejects names outside it.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	defer func() { _ = f.Close() }()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		if !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("read %s: %q has no place in an archive of an image", archive, h.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		to := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
		if err := os.WriteFile(to, content, 0o644); err != nil {
			return fmt.Errorf("read %s: %w", archive, err)
		}
	}
}
