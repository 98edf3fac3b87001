package s3store

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// The scheme of an endpoint that has none is detected, and a note reports it.
func TestEndpointWithoutScheme(t *testing.T) {
	nothing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	plain, secure := httptest.NewServer(nothing), httptest.NewTLSServer(nothing)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	// Some servers close a TLS connection without a response.
	silent := hangsUpOnTLS(t, "403 Forbidden")
	// Others respond for a TLS server: with a redirect to https, or that it is unavailable.
	redirects := hangsUpOnTLS(t, "301 Moved Permanently\r\nLocation: https://elsewhere/")
	gateway := hangsUpOnTLS(t, "503 Service Unavailable")
	strict := httptest.NewUnstartedServer(nothing)
	strict.TLS = &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert}
	strict.StartTLS()
	t.Cleanup(strict.Close)
	ca := filepath.Join(t.TempDir(), "ca")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	for name, c := range map[string]struct{ given, want, note string }{
		"none":           {"", "", ""},
		"one":            {plain.URL, plain.URL, ""},
		"speaks http":    {strings.TrimPrefix(plain.URL, "http://"), plain.URL, "assuming " + plain.URL},
		"speaks https":   {strings.TrimPrefix(secure.URL, "https://"), secure.URL, "assuming " + secure.URL},
		"hangs up":       {silent, "http://" + silent, "assuming http://" + silent},
		"redirects":      {redirects, "https://" + redirects, "assuming https://" + redirects},
		"proxy":          {gateway, "https://" + gateway, "assuming https://" + gateway},
		"unknown signer": {strings.TrimPrefix(strict.URL, "https://"), strict.URL, "assuming " + strict.URL},
		"does not speak": {"127.0.0.1:1", "https://127.0.0.1:1", "assuming https://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Endpoint: c.given, CAFile: ca}
			if name == "unknown signer" {
				config.CAFile = ""
			}
			note := config.ResolveScheme(t.Context())
			require.Equal(t, c.want, config.Endpoint)
			require.Contains(t, note, c.note)
			require.Equal(t, c.note == "", note == "")
		})
	}
	// An invalid endpoint or CA file causes no request and no note here: connect reports it.
	for _, config := range []Config{{Endpoint: "user:secret@" + silent}, {Endpoint: silent, CAFile: "none"}} {
		require.Empty(t, config.ResolveScheme(t.Context()))
		_, err := config.connect(store.Source{Kind: store.KindS3, Bucket: "bucket"})
		require.Error(t, err)
		require.NotContains(t, err.Error(), "secret")
	}
}

// hangsUpOnTLS returns the address of a server that gives every HTTP request the same answer, and
// closes other connections.
func hangsUpOnTLS(t *testing.T, answer string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", answer)
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr().String()
}

// A server that accepts the connection and never responds counts as unreachable.
func TestEndpointThatNeverAnswers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel completes connections that nobody accepts
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	config := Config{Endpoint: address, Stall: 50 * time.Millisecond}
	require.Contains(t, config.ResolveScheme(ctx), "assuming https://"+address)
	require.NoError(t, ctx.Err(), "it was the watchdog that ended it")
	_, _, err = config.probe(ctx, "http://"+address)
	require.ErrorIs(t, err, store.ErrStalled)
}
