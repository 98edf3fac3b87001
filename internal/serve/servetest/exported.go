// Package servetest compares the metrics that the daemons export with the files in monitoring/exported, against
// which the alerts and the dashboard are tested.
package servetest

import (
	"context"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what is exported into monitoring/exported")

// Testing is the part of testing.TB that this package needs.
type Testing interface {
	require.TestingT
	Helper()
}

// RequireExported requires that a daemon exports the names, help texts, types, labels and buckets in the file
// of that name in monitoring/exported. Values differ from run to run; in the file they are all 1. Metrics of
// Go's own collectors are left out.
func RequireExported(t Testing, name string, from prometheus.Gatherer) {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(from, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/metrics", nil))
	require.Equal(t, http.StatusOK, answer.Code)
	var kept strings.Builder
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.Contains(line, "flexlvm_") {
			continue
		}
		if !strings.HasPrefix(line, "#") {
			line = line[:strings.LastIndex(line, " ")] + " 1\n"
		}
		kept.WriteString(line)
	}
	file := filepath.Join("../../monitoring/exported", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(kept.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), kept.String(), "go test -run TestExported ./internal/... -args -update writes %s; then look after monitoring/ and the docs", file)
}
