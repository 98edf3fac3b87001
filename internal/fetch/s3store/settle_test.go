package s3store

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An endpoint without a scheme is spoken to as it speaks, and its user is told.
func TestEndpointWithoutScheme(t *testing.T) {
	nothing := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	plain, secure := httptest.NewServer(nothing), httptest.NewTLSServer(nothing)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	ca := filepath.Join(t.TempDir(), "ca")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	for name, c := range map[string]struct{ given, want, note string }{
		"none":           {"", "", ""},
		"one":            {plain.URL, plain.URL, ""},
		"speaks http":    {strings.TrimPrefix(plain.URL, "http://"), plain.URL, "was taken for " + plain.URL},
		"speaks https":   {strings.TrimPrefix(secure.URL, "https://"), secure.URL, "was taken for " + secure.URL},
		"does not speak": {"127.0.0.1:1", "https://127.0.0.1:1", "was taken for https://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Endpoint: c.given, CAFile: ca}
			note := config.Settle(t.Context())
			require.Equal(t, c.want, config.Endpoint)
			require.Contains(t, note, c.note)
			require.Equal(t, c.note == "", note == "")
		})
	}
}
