package fetch

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// errNoCredentials: none of the places where credentials may be has any.
var errNoCredentials = errors.New("no credentials")

// environment is the first of the variables that is set.
func environment(names ...string) string {
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return ""
}

// credentials are looked for in --credentials-dir alone if it is given; else in
// the environment, in what the platform says (web identity, container, machine),
// and in the shared files, as AWS' own tools do.
func (c S3) credentials(kind string) *credentials.Credentials {
	if c.Anonymous {
		return credentials.NewStaticV4("", "", "")
	}
	if c.CredentialsDir != "" {
		return credentials.New(&secretFiles{dir: c.CredentialsDir, token: kind == kindPachyderm})
	}
	if kind == kindPachyderm {
		return credentials.New(&chain{[]credentials.Provider{tokenEnv{}}})
	}
	iam := &credentials.IAM{Client: &http.Client{Timeout: 5 * time.Second}}
	providers := []credentials.Provider{&credentials.EnvAWS{}}
	if environment("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" {
		providers = append(providers, iam, &credentials.FileAWSCredentials{})
	} else {
		providers = append(providers, &credentials.FileAWSCredentials{}, iam)
	}
	return credentials.New(&chain{providers})
}

// chain asks providers in turn and, unlike minio's, does not go on without
// credentials where none has any.
type chain struct{ providers []credentials.Provider }

func (c *chain) Retrieve() (credentials.Value, error) {
	return c.RetrieveWithCredContext(nil)
}

func (c *chain) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	var failures []string
	for _, p := range c.providers {
		v, err := p.RetrieveWithCredContext(cc)
		if err == nil && v.AccessKeyID != "" && v.SecretAccessKey != "" {
			c.providers = []credentials.Provider{p}
			return v, nil
		}
		if err != nil {
			failures = append(failures, err.Error())
		}
	}
	return credentials.Value{}, fmt.Errorf("%w: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, give --credentials-dir or --anonymous (%s)", errNoCredentials, strings.Join(failures, "; "))
}

func (c *chain) IsExpired() bool {
	return len(c.providers) != 1 || c.providers[0].IsExpired()
}

// tokenEnv takes Pachyderm's token from the environment. It is key and secret at
// once.
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

// secretFiles reads the files of a mounted Secret. The kubelet changes them when
// the Secret changes, so they are read again from time to time.
type secretFiles struct {
	dir   string
	token bool
	read  time.Time
}

// rereadSecret is how long what was read from a Secret's files is used.
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

// file is the content of the first of the files that exists, without white space
// around it.
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
	return "", fmt.Errorf("%w: --credentials-dir lacks %s: %w", errNoCredentials, strings.Join(names, " or "), last)
}

func (s *secretFiles) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return s.Retrieve()
}

func (s *secretFiles) IsExpired() bool { return time.Since(s.read) > rereadSecret }
