package fetch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/flexlvm/flexlvm/internal/fetch/azurestore"
	"github.com/flexlvm/flexlvm/internal/fetch/dirstore"
	"github.com/flexlvm/flexlvm/internal/fetch/gcsstore"
	"github.com/flexlvm/flexlvm/internal/fetch/hubstore"
	"github.com/flexlvm/flexlvm/internal/fetch/liststore"
	"github.com/flexlvm/flexlvm/internal/fetch/ocistore"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/s3store"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// kind is a kind of source. A new one needs a row in kinds and a package beside s3store.
type kind struct {
	// example is an example URL.
	example string
	// parse reads the URL after the scheme. Its errors are phrased to follow the words "source URL".
	parse func(s *store.Source, rest string) error
	// open returns its store. Nothing is sent yet.
	open func(store.Source, access) (store.Store, error)
}

// access is the configuration for reaching a source.
type access struct{ s3store.Config }

// kinds are all kinds of sources, by the scheme of their URLs.
var kinds = map[string]kind{
	store.KindS3:        {"s3://bucket/key", s3store.Parse, openBucket},
	store.KindPachyderm: {"pachyderm://repo@branch/path", s3store.ParsePachyderm, openBucket},
	store.KindHTTPS:     {"https://host/list", liststore.Parse, openList},
	store.KindHTTP:      {"http://host/list", liststore.Parse, openList},
	store.KindHub:       {"hf://org/name", hubstore.Parse, openHub},
	store.KindOCI:       {"oci://registry/repository", ocistore.Parse, openArtifact},
	store.KindGCS:       {"gs://bucket/key", gcsstore.Parse, openGCS},
	store.KindAzure:     {"azblob://account/container/key", azurestore.Parse, openAzure},
	store.KindFile:      {"file:///path", dirstore.Parse, openDirectory},
}

func openDirectory(s store.Source, _ access) (store.Store, error) {
	return dirstore.NewIn(protocol.SourceDir, s)
}

func openBucket(s store.Source, a access) (store.Store, error) {
	return s3store.New(s, a.Config)
}

func openList(s store.Source, a access) (store.Store, error) {
	return liststore.New(s, a.web(), a.CredentialsDir)
}

func openHub(s store.Source, a access) (store.Store, error) {
	return hubstore.New(s, hubstore.Config{Config: a.web(), Endpoint: a.Endpoint, CredentialsDir: a.CredentialsDir, Anonymous: a.Anonymous})
}

func openArtifact(s store.Source, a access) (store.Store, error) {
	return ocistore.New(s, ocistore.Config{Config: a.web(), Endpoint: a.Endpoint, CredentialsDir: a.CredentialsDir, Anonymous: a.Anonymous})
}

func openGCS(s store.Source, a access) (store.Store, error) {
	return gcsstore.New(s, gcsstore.Config{Config: a.web(), Endpoint: a.Endpoint, CredentialsDir: a.CredentialsDir, Anonymous: a.Anonymous})
}

func openAzure(s store.Source, a access) (store.Store, error) {
	return azurestore.New(s, azurestore.Config{Config: a.web(), Endpoint: a.Endpoint, CredentialsDir: a.CredentialsDir, Anonymous: a.Anonymous})
}

// web returns the configuration of sources that use HTTP.
func (a access) web() web.Config {
	return web.Config{CAFile: a.CAFile, ReadBuffer: a.ReadBuffer, Attempts: a.Attempts, Stall: a.Stall}
}

// ParseSource parses the URL of a source, see kinds. Keys are not percent-decoded.
func ParseSource(raw string) (store.Source, error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return store.Source{}, fmt.Errorf("source %q has no scheme; give %s", raw, examples())
	}
	k, known := kinds[scheme]
	if !known {
		return store.Source{}, fmt.Errorf("source %q is of the unknown scheme %q; give %s", raw, scheme, examples())
	}
	s := store.Source{URL: raw, Kind: scheme}
	if err := k.parse(&s, rest); err != nil {
		return store.Source{}, fmt.Errorf("source %q %w", raw, err)
	}
	return s, s.Resolve()
}

func examples() string {
	var out []string
	for _, scheme := range slices.Sorted(maps.Keys(kinds)) {
		out = append(out, kinds[scheme].example)
	}
	return strings.Join(out[:len(out)-1], ", ") + " or " + out[len(out)-1]
}

// OpenSource opens the store of a source. Each store uses the parts of config that concern it.
func OpenSource(ctx context.Context, s store.Source, config s3store.Config) (store.Store, error) {
	defer store.TrackCall(ctx, "opening", s.URL)() // only a directory is accessed; nothing is sent
	return kinds[s.Kind].open(s, access{config})
}
