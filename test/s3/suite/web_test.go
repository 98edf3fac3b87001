//go:build s3

package suite

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/web/webtest"
	"github.com/flexlvm/flexlvm/test/hub"
)

// fewer limits what is in transit when a load is killed to a few MiB for each connection.
var fewer = []string{"--bandwidth", "20Mi", "--parallel", "4"}

// killed starts a load and kills it after that many bytes were sent.
func (b *bed) killed(s *webtest.Server, path string, after int64, args ...string) {
	b.t.Helper()
	release := s.HoldAfter(path, after)
	defer release()
	r := b.launch(args...)
	for s.Sent(path) < after {
		require.NoError(b.t, b.ctx.Err(), r.stderr.String())
		time.Sleep(5 * time.Millisecond)
	}
	require.NoError(b.t, r.cmd.Process.Kill())
	r.wait()
	require.False(b.t, b.complete())
}

// A load of a list that is killed resumes where it was.
func TestListIsKilled(t *testing.T) {
	b, s := newBed(t), webtest.New(t, false)
	const secret = "a-secret-token"
	credentials := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(credentials, "token"), []byte(secret), 0o600))
	want := tree{"large": noise(21, 60<<20), "d/small": "small"}
	var list strings.Builder
	for path, content := range want {
		sum := sha256.Sum256([]byte(content))
		fmt.Fprintf(&list, "{\"url\":%q,\"sha256\":%q,\"size\":%d}\n", path, hex.EncodeToString(sum[:]), len(content))
		s.Put("/"+path, []byte(content))
	}
	s.Put("/list", []byte(list.String()))
	s.Inject(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		require.Equal(t, "Bearer "+secret, r.Header.Get("Authorization"))
		next.ServeHTTP(w, r)
	})
	args := []string{"--credentials-dir", credentials, "--log-level", "trace", s.URL + "/list", b.dest}
	b.killed(s, "/large", 44<<20, slices.Concat(fewer, args)...)
	before := s.Sent("/large")
	o := b.launch(args...).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
	require.True(t, b.complete())
	// Some of the bytes sent before the kill were still in transit.
	require.Less(t, s.Sent("/large")-before, int64(42<<20), "what had come is not fetched again")
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, secret)
	for _, e := range b.manifest() {
		require.Equal(t, "sha256", e.Check)
	}
}

// A load from the Hub that is killed resumes where it was, although each request is redirected to
// another host with another signature.
func TestHubIsKilled(t *testing.T) {
	b, api, cdn := newBed(t), webtest.New(t, false), webtest.New(t, false)
	h := &hub.Hub{Token: "hf_aSecretToken", CDN: cdn.URL, Serve: webtest.Serve}
	api.Handle("/", h.ServeHTTP)
	cdn.Handle("/blobs/", h.Blobs())
	want := tree{"model.safetensors": noise(22, 60<<20), "config.json": "{}"}
	commit := h.Commit("models/org/name", "main", map[string]hub.File{
		"model.safetensors": {Content: []byte(want["model.safetensors"]), LFS: true}, "config.json": {Content: []byte("{}")},
	})
	b.env = append(b.env, "HF_TOKEN="+h.Token)
	args := []string{"--endpoint", api.URL, "--log-level", "trace", "hf://org/name", b.dest}
	b.killed(cdn, "", 44<<20, slices.Concat(fewer, args)...)
	before := cdn.Sent("")
	o := b.launch(args...).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, want, b.files())
	require.Less(t, cdn.Sent("")-before, int64(42<<20), "what had come is not fetched again")
	require.NotContains(t, o.stdout+o.stderr+o.result.Message, h.Token)
	complete, err := os.ReadFile(filepath.Join(b.dest, ".flexlvm/complete"))
	require.NoError(t, err)
	require.Contains(t, string(complete), `"revision":"`+commit+`"`)
}
