// Package s3store reads objects from, and uploads them to, S3 and compatible servers such
// as Pachyderm's gateway.
package s3store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// environment returns the first of the variables that is set.
func environment(names ...string) string {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return ""
}

// credentials returns the credentials from --credentials-dir alone if it is given; else from the
// environment, from the platform (web identity, container, machine), and from the shared files, as AWS'
// own tools do.
func (c Config) credentials(kind string) *credentials.Credentials {
	if c.Anonymous {
		return credentials.NewStaticV4("", "", "")
	}
	if c.CredentialsDir != "" {
		return credentials.New(&secretFiles{dir: c.CredentialsDir, token: kind == store.KindPachyderm})
	}
	if kind == store.KindPachyderm {
		return credentials.New(&Chain{providers: []credentials.Provider{tokenEnv{}}})
	}
	return credentials.New(NewChain(&credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second, Transport: BufferedResponses{http.DefaultTransport}}}))
}

// NewChain returns a Chain in the order of AWS' own tools. If the environment configures the platform's
// provider, that provider comes before the shared files, and is Required.
func NewChain(iam *credentials.IAM) *Chain {
	env, files := &credentials.EnvAWS{}, &credentials.FileAWSCredentials{}
	if environment("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" {
		return &Chain{providers: []credentials.Provider{env, iam, files}, Required: iam}
	}
	return &Chain{providers: []credentials.Provider{env, files, iam}}
}

// Chain tries providers in turn and, unlike minio's, fails if none has credentials.
type Chain struct {
	providers []credentials.Provider
	// Required is the provider that is configured or has returned credentials before: if it cannot be
	// reached, no other provider replaces it.
	Required credentials.Provider
}

// Retrieve implements credentials.Provider.
func (c *Chain) Retrieve() (credentials.Value, error) {
	return c.RetrieveWithCredContext(nil)
}

// RetrieveWithCredContext implements credentials.Provider.
func (c *Chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var failures []string
	for _, p := range c.providers {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			c.providers, c.Required = []credentials.Provider{p}, p
			return v, nil
		}
		if p == c.Required && isTransient(err) {
			return credentials.Value{}, fmt.Errorf("ask for credentials: %w", err)
		}
		if err != nil {
			failures = append(failures, err.Error())
		}
	}
	return credentials.Value{}, fmt.Errorf("%w: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give --credentials-dir or --anonymous (%s)", store.ErrNoCredentials, strings.Join(failures, "; "))
}

// IsExpired implements credentials.Provider.
func (c *Chain) IsExpired() bool {
	return len(c.providers) != 1 || c.providers[0].IsExpired()
}

// isTransient reports whether a provider's failure is temporary: its request got no valid response, or the
// response asks for a retry.
func isTransient(err error) bool {
	var request *url.Error
	var sts credentials.ErrorResponse
	if errors.As(err, &sts) {
		c, known := store.Codes[sts.STSError.Code]
		return known && c == store.Transient
	}
	return errors.As(err, &request)
}

// maxResponse bounds a response with credentials, in bytes.
const maxResponse = store.MiB

// BufferedResponses turns every temporary failure into a failed request (url.Error), because minio's
// providers lose the status of a response, and read it piece by piece.
type BufferedResponses struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p BufferedResponses) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := p.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	_ = response.Body.Close() // it was only read
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests {
		return nil, fmt.Errorf("the answer is %s", response.Status)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, nil
}

// tokenEnv reads Pachyderm's token from the environment. The token is both key and secret.
type tokenEnv struct{}

func (tokenEnv) Retrieve() (credentials.Value, error) {
	token := environment("PACHYDERM_TOKEN", "PACH_TOKEN")
	if token == "" {
		return credentials.Value{}, errors.New("PACHYDERM_TOKEN is not set")
	}
	return credentials.Value{AccessKeyID: token, SecretAccessKey: token, SignerType: credentials.SignatureV4}, nil
}

func (t tokenEnv) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return t.Retrieve()
}

func (tokenEnv) IsExpired() bool { return false }

// secretFiles reads the files of a mounted Secret. The kubelet replaces them when the Secret changes,
// so they are read again every rereadSecret.
type secretFiles struct {
	dir   string
	token bool
	read  time.Time
}

// rereadSecret is how long the content of a Secret's files is used.
const rereadSecret = time.Minute

func (s *secretFiles) Retrieve() (credentials.Value, error) {
	s.read = time.Now()
	if s.token {
		token, err := s.file("token", "pachydermToken")
		return credentials.Value{AccessKeyID: token, SecretAccessKey: token, SignerType: credentials.SignatureV4}, err
	}
	key, err := s.file("awsAccessKeyID")
	if err != nil {
		return credentials.Value{}, err
	}
	secret, err := s.file("awsSecretAccessKey")
	if err != nil {
		return credentials.Value{}, err
	}
	session, err := s.file("awsSessionToken")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return credentials.Value{}, err
	}
	return credentials.Value{AccessKeyID: key, SecretAccessKey: secret, SessionToken: session, SignerType: credentials.SignatureV4}, nil
}

// file returns the content of the first of the files that exists, without white space around it.
func (s *secretFiles) file(names ...string) (string, error) {
	var last error
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(s.dir, name))
		if err == nil {
			if text := strings.TrimSpace(string(data)); text != "" {
				return text, nil
			}
			err = fmt.Errorf("file %s is empty", name)
		}
		last = err
	}
	return "", fmt.Errorf("%w: --credentials-dir lacks %s: %w", store.ErrNoCredentials, strings.Join(names, " or "), last)
}

func (s *secretFiles) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return s.Retrieve()
}

func (s *secretFiles) IsExpired() bool { return time.Since(s.read) > rereadSecret }
