package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

var token = []byte(strings.Repeat("t", minToken))

// served starts a server of one file, a, that runs until the test ends.
func served(t *testing.T, change func(*Server)) (address string, identity *Identity) {
	t.Helper()
	identity, err := NewIdentity(token, "set")
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.WriteFile(name, []byte("0123456789"), 0o600))
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := &Server{Index: []byte("index"), Log: log, Stall: time.Minute, Open: func(path string) (*os.File, error) {
		if path != "a" {
			return nil, fs.ErrNotExist
		}
		return os.Open(name)
	}}
	change(s)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener, identity) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return listener.Addr().String(), identity
}

func clientOf(config *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

func get(t *testing.T, c *http.Client, address string) (int, string, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	answer, err := c.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { require.NoError(t, answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestServerGivesItsFilesAlone(t *testing.T) {
	address, identity := served(t, func(*Server) {})
	client := clientOf(identity.tls())
	ask := func(path string) int {
		status, _, err := get(t, client, "https://"+address+path)
		require.NoError(t, err)
		return status
	}
	status, body, err := get(t, client, "https://"+address+"/file?path=a")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "0123456789", body)
	for _, path := range []string{"", "../a", "/etc/passwd", ".flexlvm/complete"} {
		require.Equal(t, http.StatusNotFound, ask("/file?"+url.Values{"path": {path}}.Encode()), path)
	}
	for _, path := range []string{"/", "/a", "/file/a", "/.flexlvm/manifest.jsonl"} {
		require.Equal(t, http.StatusNotFound, ask(path), path)
	}
	post, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/file?path=a", strings.NewReader("x"))
	require.NoError(t, err)
	answer, err := client.Do(post)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, answer.StatusCode)
}

func TestServerKnowsItsPeers(t *testing.T) {
	address, identity := served(t, func(*Server) {})
	other, err := NewIdentity(token, "other")
	require.NoError(t, err)
	stranger, err := NewIdentity([]byte(strings.Repeat("u", minToken)), "set")
	require.NoError(t, err)
	careless := func(i *Identity) *tls.Config { // accepts any server
		c := i.tls()
		c.VerifyConnection = nil
		return c
	}
	nobody := careless(identity)
	nobody.Certificates = nil
	for name, config := range map[string]*tls.Config{
		"no certificate": nobody, "token of another dataset": careless(other), "another token": careless(stranger),
	} {
		_, _, err := get(t, clientOf(config), "https://"+address+"/index")
		require.Error(t, err, name)
	}
	// A client sends nothing to a server that does not have the token.
	_, _, err = get(t, clientOf(stranger.tls()), "https://"+address+"/index")
	require.ErrorIs(t, err, errWrongToken)
	status, _, err := get(t, http.DefaultClient, "http://"+address+"/index")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, status, "nothing without TLS")
	_, body, err := get(t, clientOf(identity.tls()), "https://"+address+"/index")
	require.NoError(t, err)
	require.Equal(t, "index", body)
}

func TestServerBoundsRequests(t *testing.T) {
	const most = 2
	came, release := make(chan struct{}, most), make(chan struct{})
	address, identity := served(t, func(s *Server) {
		s.MaxRequests = most
		s.Throttle = func(ctx context.Context, _ int64) error {
			came <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		}
	})
	client := clientOf(identity.tls())
	ended := make(chan error, most)
	for range most {
		go func() {
			_, body, err := get(t, client, "https://"+address+"/index")
			if err == nil && body != "index" {
				err = errors.New(body)
			}
			ended <- err
		}()
	}
	for range most {
		select {
		case <-came:
		case err := <-ended:
			require.NoError(t, err, "it waits until it is released")
		}
	}
	status, _, err := get(t, client, "https://"+address+"/index")
	require.NoError(t, err)
	require.Equal(t, http.StatusServiceUnavailable, status)
	close(release)
	for range most {
		require.NoError(t, <-ended)
	}
}

func TestIndexIsReadAsItWasWritten(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678, time.UTC)
	in := Index{Revision: "r", Files: []File{
		{Path: "b<&>é", Bytes: 2, ETag: "e", VersionID: "v", Modified: at, SHA256: "s"}, {Path: "a", SHA256: "t"},
	}}
	data, digest, err := in.Encode()
	require.NoError(t, err)
	out, err := parseIndex(data, digest)
	require.NoError(t, err)
	require.Equal(t, Index{Revision: "r", Files: []File{in.Files[1], in.Files[0]}}, out)
	again, same, err := out.Encode()
	require.NoError(t, err)
	require.Equal(t, data, again)
	require.Equal(t, digest, same)

	_, err = parseIndex(append(data, '\n'), digest)
	require.ErrorIs(t, err, store.ErrChecksum)
	short := data[:bytes.LastIndexByte(data[:len(data)-1], '\n')+1]
	_, err = parseIndex(short, digestOf(short))
	require.ErrorContains(t, err, "it has 1 files, and says 2")
	_, err = parseIndex([]byte("{"), digestOf([]byte("{")))
	require.ErrorContains(t, err, "read index")
}

func TestStoreWantsAddressesAndADigest(t *testing.T) {
	identity, err := NewIdentity(token, "set")
	require.NoError(t, err)
	for _, c := range []Config{{Index: "sha256:0"}, {Peers: []string{"h:1"}}, {Peers: []string{"h"}, Index: "sha256:0"}} {
		c.Identity = identity
		_, err := New(c)
		var wrong *store.Error
		require.ErrorAs(t, err, &wrong)
		require.True(t, wrong.Usage)
	}
}

func TestIdentityIsOfADirectory(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadIdentity(dir, "set")
	require.ErrorContains(t, err, `needs the entry "token"`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, TokenFile), append(token, '\n'), 0o600))
	read, err := ReadIdentity(dir, "set")
	require.NoError(t, err)
	made, err := NewIdentity(token, "set")
	require.NoError(t, err)
	require.Equal(t, made.public, read.public)
}
