package web

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/oauth2"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// Secret returns the content of the first of the files of a mounted Secret that exists, without white
// space around it; empty if none exists. It reads the files on each call, because the kubelet replaces
// them when the Secret changes.
func Secret(dir string, names ...string) (string, error) {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", store.ErrNoCredentials, err)
		}
		if text := strings.TrimSpace(string(data)); text != "" {
			return text, nil
		}
		return "", fmt.Errorf("%w: file %s of --credentials-dir is empty", store.ErrNoCredentials, name)
	}
	return "", nil
}

// BasicOrBearer returns a function that authorizes requests with the files of a directory: token, or
// username and password, as in Secrets of type kubernetes.io/basic-auth.
func BasicOrBearer(dir string) func(context.Context, http.Header) error {
	return func(_ context.Context, header http.Header) error {
		token, err := Secret(dir, "token")
		if err != nil {
			return err
		}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
			return nil
		}
		user, err := Secret(dir, "username")
		if err != nil {
			return err
		}
		password, err := Secret(dir, "password")
		if err != nil {
			return err
		}
		if user == "" || password == "" {
			return fmt.Errorf("%w: --credentials-dir lacks token, or username and password", store.ErrNoCredentials)
		}
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
		return nil
	}
}

// TokenError classifies the error of a token source: if the token server has refused the request, and a
// retry would not help, the result is store.ErrNoCredentials.
func TokenError(err error) error {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode < http.StatusInternalServerError && refused.Response.StatusCode != http.StatusTooManyRequests {
		// Only the parts of the response that cannot hold a secret.
		return fmt.Errorf("%w: the token server answers %d %s", store.ErrNoCredentials, refused.Response.StatusCode, refused.ErrorCode)
	}
	return fmt.Errorf("ask for a token: %w", err)
}
