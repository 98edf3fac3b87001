package gcsstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

const scope = "https://www.googleapis.com/auth/devstorage.read_only"

// authorize returns a function that adds a token, which is requested when it is first needed, and again
// when it is about to expire.
func authorize(config Config) (func(context.Context, http.Header) error, error) {
	transport, err := web.NewTransport(true, config.CAFile, 0)
	if err != nil {
		return nil, err
	}
	// The source outlives the request that needs it first.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: transport, Timeout: config.Stall})
	source := sync.OnceValues(func() (oauth2.TokenSource, error) { return find(ctx, config.CredentialsDir) })
	return func(_ context.Context, header http.Header) error {
		from, err := source()
		if err != nil {
			return fmt.Errorf("%w: %w", store.ErrNoCredentials, err)
		}
		token, err := from.Token()
		if err != nil {
			return web.TokenError(err)
		}
		token.SetAuthHeader(&http.Request{Header: header})
		return nil
	}, nil
}

// find returns a source of tokens for the key of a service account in dir, or for the credentials that
// Google's own tools would find.
func find(ctx context.Context, dir string) (oauth2.TokenSource, error) {
	if dir == "" {
		found, err := google.FindDefaultCredentials(ctx, scope)
		if err != nil {
			return nil, fmt.Errorf("give --credentials-dir or --anonymous: %w", err)
		}
		return found.TokenSource, nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "key.json"))
	if err != nil {
		return nil, fmt.Errorf("--credentials-dir lacks key.json: %w", err)
	}
	account, err := google.JWTConfigFromJSON(data, scope)
	if err != nil {
		return nil, errors.New("key.json is not the JSON key of a service account")
	}
	return account.TokenSource(ctx), nil
}
