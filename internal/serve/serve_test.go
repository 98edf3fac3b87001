package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/serve"
)

func TestServer(t *testing.T) {
	var ill error
	health := serve.Health{
		Check:   func(*http.Request) error { return ill },
		Unready: func() string { return "the API server has not answered yet" },
	}
	server := serve.New(serve.NewRegistry(), health)
	at, err := server.Listen(t.Context(), serve.Options{Address: "127.0.0.1:0"}, nil)
	require.NoError(t, err)
	get := func(path string) (int, string) {
		response, err := http.Get(fmt.Sprintf("http://%s%s", at.Health, path))
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(body)
	}

	code, _ := get("/healthz")
	require.Equal(t, http.StatusOK, code)
	ill = errors.New("stuck")
	code, body := get("/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "stuck")

	code, body = get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "has not answered yet")
	server.Ready()
	code, _ = get("/readyz")
	require.Equal(t, http.StatusOK, code)

	_, body = get("/metrics")
	require.Contains(t, body, "flexlvm_build_info{version=")
	require.Contains(t, body, "go_goroutines")

	_, err = serve.New(serve.NewRegistry(), health).Listen(t.Context(), serve.Options{Address: at.Health}, nil)
	require.ErrorContains(t, err, "choose another --address")
	require.NoError(t, server.Close())
}

// A request that does not end on one address does not keep Close from closing the other address.
func TestCloseStopsAllAddresses(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	health := serve.Health{Check: func(*http.Request) error {
		close(begun)
		<-end
		return nil
	}, Unready: func() string { return "" }}
	server := serve.New(serve.NewRegistry(), health)
	at, err := server.Listen(t.Context(), serve.Options{Address: "127.0.0.1:0", HealthAddress: "127.0.0.1:0"}, nil)
	require.NoError(t, err)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if response, err := http.Get("http://" + at.Metrics + "/healthz"); err == nil {
			_ = response.Body.Close()
		}
	}()
	<-begun
	require.ErrorIs(t, server.Close(), context.DeadlineExceeded)
	_, err = net.Dial("tcp", at.Health)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	close(end)
	<-answered
}
