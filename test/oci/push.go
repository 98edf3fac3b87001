package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry/remote"
)

// Layer is a layer of a manifest.
type Layer struct {
	MediaType   string
	Annotations map[string]string
	Content     []byte
}

// Push pushes an artifact with these layers, and returns its digest. dial connects this process to the registry;
// nil is net.Dialer's.
func (r *Registry) Push(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), name, tag string, layers ...Layer) (string, error) {
	repository, err := r.repository(dial, name)
	if err != nil {
		return "", err
	}
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: ocispec.DescriptorEmptyJSON}
	if err := repository.Push(ctx, m.Config, bytes.NewReader(m.Config.Data)); err != nil {
		return "", fmt.Errorf("push config: %w", err)
	}
	for _, l := range layers {
		d := content.NewDescriptorFromBytes(l.MediaType, l.Content)
		d.Annotations = l.Annotations
		m.Layers = append(m.Layers, d)
		if err := repository.Push(ctx, d, bytes.NewReader(l.Content)); err != nil {
			return "", fmt.Errorf("push layer: %w", err)
		}
	}
	return push(ctx, repository, tag, m.MediaType, m)
}

// PushIndex pushes an index of existing manifests, by their platforms.
func (r *Registry) PushIndex(ctx context.Context, name, tag string, manifests ...ocispec.Descriptor) (string, error) {
	repository, err := r.repository(nil, name)
	if err != nil {
		return "", err
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: manifests}
	return push(ctx, repository, tag, index.MediaType, index)
}

func push(ctx context.Context, repository *remote.Repository, tag, mediaType string, manifest any) (string, error) {
	data, err := json.Marshal(manifest)
	if err != nil {
		return "", err
	}
	d := content.NewDescriptorFromBytes(mediaType, data)
	if err := repository.PushReference(ctx, d, bytes.NewReader(data), tag); err != nil {
		return "", fmt.Errorf("push manifest: %w", err)
	}
	return d.Digest.String(), nil
}

func (r *Registry) repository(dial func(context.Context, string, string) (net.Conn, error), name string) (*remote.Repository, error) {
	repository, err := remote.NewRepository(r.Host + "/" + name)
	if err != nil {
		return nil, err
	}
	repository.PlainHTTP = true
	if dial != nil {
		repository.Client = &http.Client{Transport: &http.Transport{DialContext: dial}}
	}
	return repository, nil
}

// Tar packs files, and after them entries that are not regular files.
func Tar(files map[string]string, others ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dirs := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if dir, _, deep := cut(name); deep && !dirs[dir] {
			dirs[dir] = true
			must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}))
		}
		must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])), Mode: 0o600}))
		_, err := w.Write([]byte(files[name]))
		must(err)
	}
	for _, header := range others {
		must(w.WriteHeader(&header))
	}
	must(w.Close())
	return b.Bytes()
}

func cut(name string) (dir, base string, deep bool) {
	for i := range name {
		if i > 0 && name[i] == '/' {
			return name[:i], name[i+1:], true
		}
	}
	return "", name, false
}

// Gzip compresses data.
func Gzip(data []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(err)
	must(w.Close())
	return b.Bytes()
}

// Zstd compresses data.
func Zstd(data []byte) []byte {
	var b bytes.Buffer
	w, err := zstd.NewWriter(&b)
	must(err)
	_, err = w.Write(data)
	must(err)
	must(w.Close())
	return b.Bytes()
}

// must panics on an error, which can only be a mistake in a test's data: writes to memory do not fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
