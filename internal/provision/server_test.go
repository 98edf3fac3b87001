package provision_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/provision"
)

func TestServer(t *testing.T) {
	metrics := provision.NewMetrics()
	server := provision.NewServer(metrics, health())
	address, err := server.Listen(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	get := func(path string) (int, string) {
		response, err := http.Get(fmt.Sprintf("http://%s%s", address, path))
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}

	code, _ := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	code, body := get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "has not answered yet")
	server.Ready()
	code, _ = get("/readyz")
	require.Equal(t, http.StatusOK, code)

	metrics.Leading(true)
	metrics.Refused(nil)
	_, body = get("/metrics")
	require.Contains(t, body, "flexlvm_provisioner_leader 1\n")
	require.Contains(t, body, "flexlvm_provisioner_refusals_total 1\n")
	require.NotContains(t, body, "delete", "nothing is ever deleted here")

	_, err = provision.NewServer(metrics, health()).Listen(t.Context(), address.String())
	require.ErrorContains(t, err, "choose another --address")
	require.NoError(t, server.Close())
}
