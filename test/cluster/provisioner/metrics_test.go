//go:build cluster

package provisioner_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/await"
)

// testMetricsManifests: each restriction of who can read metrics is enabled by uncommenting one line.
func (b *bed) testMetricsManifests(t *testing.T) {
	for component, holds := range map[string][]string{
		"auth":          {"--metrics-auth", "name: flexlvm-metrics-reader", "name: system:auth-delegator"},
		"local":         {"--address=127.0.0.1:"},
		"networkpolicy": {"kind: NetworkPolicy"},
	} {
		for _, where := range []string{".", "nfs"} {
			dir := filepath.Join(t.TempDir(), "installer")
			require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(b.source, "installer"))))
			file := filepath.Join(dir, where, "kustomization.yaml")
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			line := "metrics/" + component + "\n"
			if where == "nfs" {
				line = "../" + line
			}
			require.Contains(t, string(content), "  # - "+line)
			changed := strings.Replace(string(content), "  # - "+line, "  - "+line, 1)
			require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
			built := b.kubectl(t, "kustomize", filepath.Join(dir, where))
			for _, part := range holds {
				require.Contains(t, built, part)
			}
			// The API server accepts the added objects, which are the same in both; local adds none.
			if where == "." && component != "local" {
				require.NoError(t, b.apply(t, built, "--dry-run=server"))
			}
		}
	}
}

// testMetricsReaders: the API server decides who can read metrics, with the shipped rights.
func (b *bed) testMetricsReaders(t *testing.T) {
	const port, health = 8091, 8092
	rights := filepath.Join(b.source, "installer/metrics/auth/rbac.yaml")
	b.kubectl(t, "apply", "-f", rights)
	b.kubectl(t, "create", "serviceaccount", "prometheus", "-n", system)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := b.cluster.Kubectl(ctx, "delete", "-f", rights)
		require.NoError(t, err)
		_, err = b.cluster.Kubectl(ctx, "delete", "clusterrolebinding", "prometheus", "--ignore-not-found")
		require.NoError(t, err)
	})
	b.flags = []string{"--metrics-auth", fmt.Sprintf("--health-address=127.0.0.1:%d", health)}
	t.Cleanup(func() { b.flags = nil })
	b.run(t, port)
	b.ready(t, health)

	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the provisioner signs its certificate itself
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return b.cluster.Dial(ctx, network, address)
		},
	}}
	scrape := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/metrics", port), nil)
		require.NoError(t, err)
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		return response.StatusCode
	}
	token := strings.TrimSpace(b.kubectl(t, "create", "token", "prometheus", "-n", system))
	for _, c := range []struct {
		token string
		code  int
	}{{"", http.StatusUnauthorized}, {"nonsense", http.StatusUnauthorized}, {token, http.StatusForbidden}} {
		code := http.StatusServiceUnavailable
		await.Until(t, longest, func() string { // the API server may answer late, which says nothing about the token
			code = scrape(c.token)
			return await.Missing(code != http.StatusServiceUnavailable, "the API server does not answer in time")
		})
		require.Equal(t, c.code, code)
	}
	b.kubectl(t, "create", "clusterrolebinding", "prometheus", "--clusterrole=flexlvm-metrics-reader", "--serviceaccount="+system+":prometheus")
	await.Until(t, longest, func() string { // a refusal is cached for some seconds
		code := scrape(token)
		return await.Missing(code == http.StatusOK, "a reader of metrics is told %d", code)
	})
}
