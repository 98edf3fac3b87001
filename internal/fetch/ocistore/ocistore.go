// Package ocistore reads artifacts and images from OCI registries: files that are layers of their own,
// and files packed in layers.
package ocistore

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// Config describes how to reach a registry.
type Config struct {
	web.Config
	// Endpoint is http[s]://host[:port] of a registry to use instead of the one in the source: a
	// mirror, or one without TLS.
	Endpoint string
	// CredentialsDir is a directory with a file .dockerconfigjson, as in Secrets of type
	// kubernetes.io/dockerconfigjson; empty for DOCKER_CONFIG.
	CredentialsDir string
	Anonymous      bool
}

// Artifact is a Store of the content of one manifest.
type Artifact struct {
	client     *web.Client
	repository *remote.Repository
	base       string // URL of the blobs
	reference  string // tag or digest
	attempts   int
	config     Config

	digest digest.Digest // of the reference's manifest when it was resolved
	layers []layer
	files  map[string]member
}

const form = "give oci://registry/repository[:tag|@digest]"

// Parse parses what follows oci:// in a source.
func Parse(s *store.Source, rest string) error {
	ref, err := registry.ParseReference(rest)
	if err != nil || strings.Contains(ref.Registry, "@") {
		return fmt.Errorf("names no artifact; %s", form)
	}
	if _, err := ref.Digest(); err != nil && strings.Contains(rest, "@") {
		return fmt.Errorf("has an invalid digest; %s", form)
	}
	s.Bucket = rest
	return nil
}

// New returns the Store of an oci:// source. It sends nothing yet.
func New(source store.Source, config Config) (store.Store, error) {
	ref, err := registry.ParseReference(source.Bucket)
	if err != nil {
		return nil, store.Usage(err)
	}
	base := &url.URL{Scheme: "https", Host: ref.Host()}
	if config.Endpoint != "" {
		if base, err = url.Parse(strings.TrimRight(config.Endpoint, "/")); err != nil || base.Host == "" || base.User != nil || base.Path != "" || base.Scheme != "http" && base.Scheme != "https" {
			return nil, store.Usage(errors.New("--endpoint is not of the form http[s]://host[:port]"))
		}
		ref.Registry = base.Host
	}
	a := &Artifact{reference: ref.ReferenceOrDefault(), attempts: config.Attempts, config: config, base: base.String() + "/v2/" + ref.Repository + "/blobs/"}
	config.Wrap = func(client *http.Client) web.Doer {
		return doer{&auth.Client{Client: client, Cache: auth.NewCache(), Credential: config.credential}, ref}
	}
	if a.client, err = web.New(config.Config); err != nil {
		return nil, store.Usage(err)
	}
	a.repository = &remote.Repository{Client: a.client, Reference: ref, PlainHTTP: base.Scheme == "http"}
	return a, nil
}

// credential returns the credential of a registry. It reads the file each time, because the kubelet
// replaces a Secret's files.
func (c Config) credential(ctx context.Context, host string) (auth.Credential, error) {
	if c.Anonymous {
		return auth.EmptyCredential, nil
	}
	name := filepath.Join(c.CredentialsDir, ".dockerconfigjson")
	if c.CredentialsDir == "" {
		dir := os.Getenv("DOCKER_CONFIG")
		if dir == "" {
			return auth.EmptyCredential, nil
		}
		name = filepath.Join(dir, "config.json")
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return auth.EmptyCredential, fmt.Errorf("%w: cannot read %s: %w", store.ErrNoCredentials, name, err)
	}
	known, err := credentials.NewMemoryStoreFromDockerConfig(data)
	if err != nil {
		return auth.EmptyCredential, fmt.Errorf("%w: %s is not a Docker configuration file", store.ErrNoCredentials, filepath.Base(name))
	}
	return credentials.Credential(known)(ctx, host)
}

// doer requests the right to pull, and converts the library's errors to those of a Store.
type doer struct {
	client *auth.Client
	ref    registry.Reference
}

// Do implements web.Doer.
func (d doer) Do(request *http.Request) (*http.Response, error) {
	ctx := auth.AppendRepositoryScope(request.Context(), d.ref, auth.ActionPull)
	response, err := d.client.Do(request.WithContext(ctx))
	return response, translated(err)
}

func translated(err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case errors.As(err, &answer):
		return &store.HTTPError{Status: answer.StatusCode, Host: answer.URL.Host, Message: answer.Errors.Error()}
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return fmt.Errorf("%w for this registry", store.ErrNoCredentials)
	}
	return err
}

func withAdvice(err error) error {
	return store.WithAdvice(err, "check the name and the credentials, a file .dockerconfigjson", "")
}

// manifest fetches a manifest and verifies its digest.
func (a *Artifact) manifest(ctx context.Context, reference string) (desc ocispec.Descriptor, data []byte, err error) {
	err = store.Retry(ctx, a.attempts, func(ctx context.Context) error {
		ctx, _, stop := store.WatchStall(ctx, a.config.Stall)
		defer stop()
		var body io.ReadCloser
		if desc, body, err = a.repository.Manifests().FetchReference(ctx, reference); err != nil {
			return store.Cause(ctx, notFound(translated(err)))
		}
		defer func() { _ = body.Close() }()
		data, err = content.ReadAll(body, desc)
		return store.Cause(ctx, err)
	})
	if err != nil {
		return desc, nil, fmt.Errorf("fetch manifest %s: %w", reference, withAdvice(err))
	}
	return desc, data, nil
}

// Resolve implements store.Archived.
func (a *Artifact) Resolve(ctx context.Context) error {
	desc, data, err := a.manifest(ctx, a.reference)
	if err != nil {
		return err
	}
	a.digest = desc.Digest
	if desc.MediaType == ocispec.MediaTypeImageIndex || desc.MediaType == "application/vnd.docker.distribution.manifest.list.v2+json" {
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return &store.Error{Err: fmt.Errorf("the index is not JSON: %w", err)}
		}
		one, err := choose(index.Manifests)
		if err != nil {
			return &store.Error{Err: err}
		}
		if _, data, err = a.manifest(ctx, one.Digest.String()); err != nil {
			return err
		}
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil || m.SchemaVersion != 2 {
		return &store.Error{Err: fmt.Errorf("the manifest, of media type %q, is neither of an image nor of an artifact", desc.MediaType)}
	}
	a.layers = nil
	for _, d := range m.Layers {
		l, err := layerOf(d)
		if err != nil {
			return &store.Error{Err: err}
		}
		a.layers = append(a.layers, l)
	}
	return nil
}

// choose returns the manifest of an index for this machine, or the only one.
func choose(manifests []ocispec.Descriptor) (ocispec.Descriptor, error) {
	var images []ocispec.Descriptor
	var have []string
	for _, m := range manifests {
		if m.Annotations["vnd.docker.reference.type"] != "" { // an attestation of another manifest
			continue
		}
		if p := m.Platform; p != nil {
			if p.OS == "linux" && p.Architecture == runtime.GOARCH {
				return m, nil
			}
			have = append(have, p.OS+"/"+p.Architecture)
		}
		images = append(images, m)
	}
	if len(images) == 1 {
		return images[0], nil
	}
	return ocispec.Descriptor{}, fmt.Errorf("the index has no manifest for linux/%s, only for: %s; name one by its digest", runtime.GOARCH, cmp.Or(strings.Join(have, ", "), "none"))
}

// Revision implements store.Revisioned: the digest to which the reference resolved.
func (a *Artifact) Revision() string { return a.digest.String() }

// sumOf returns the SHA-256 of a digest; other algorithms cannot be verified.
func sumOf(d digest.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("digest %q is not a SHA-256", d)
	}
	return hex.DecodeString(d.Encoded())
}
