// Package gcs starts a server of Google Cloud Storage's JSON API for tests: fsouza/fake-gcs-server, which has no
// authentication.
package gcs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/flexlvm/flexlvm/test/built"
	"github.com/flexlvm/flexlvm/test/served"
	"github.com/flexlvm/flexlvm/test/vm"
)

// Server is a running server with its data in memory.
type Server struct{ *served.Program }

// Start builds what is missing, starts a server and returns once it responds. It logs a line before a long build.
func Start(ctx context.Context, cfg served.Config, log io.Writer) (*Server, error) {
	root, err := vm.SourceDir()
	if err != nil {
		return nil, err
	}
	binary, err := built.Module(ctx, filepath.Join(root, "test/gcs/server"), "fake-gcs-server", "github.com/fsouza/fake-gcs-server", log)
	if err != nil {
		return nil, err
	}
	program, err := served.Start(ctx, cfg, "/storage/v1/b", func(address string) []string {
		host, port, _ := net.SplitHostPort(address) // address always has both
		return []string{binary, "-scheme", "http", "-host", host, "-port", port, "-public-host", address, "-backend", "memory"}
	})
	if err != nil {
		return nil, err
	}
	return &Server{program}, nil
}

// MakeBucket creates a bucket.
func (s *Server) MakeBucket(ctx context.Context, name string) error {
	return s.post(ctx, "/storage/v1/b", fmt.Sprintf(`{"name":%q}`, name))
}

// Put uploads an object.
func (s *Server) Put(ctx context.Context, bucket, name, content string) error {
	return s.post(ctx, "/upload/storage/v1/b/"+bucket+"/o?uploadType=media&name="+url.QueryEscape(name), content)
}

func (s *Server) post(ctx context.Context, path, body string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.Address+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("POST %s: %s: %s", path, response.Status, strings.TrimSpace(string(text)))
	}
	return nil
}
