package azurestore

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/store"
	"github.com/flexlvm/flexlvm/internal/fetch/web"
)

// A server that accepts connections and never responds is given up, also if the source is one blob.
func TestServerThatNeverAnswers(t *testing.T) {
	for name, key := range map[string]string{"all below a prefix": "p/", "one blob": "p/a"} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel completes connections that nobody accepts
			require.NoError(t, err)
			t.Cleanup(func() { _ = listener.Close() })
			source := store.Source{Kind: store.KindAzure, Bucket: "account/container", Key: key}
			c, err := New(source, Config{Config: web.Config{Attempts: 2, Stall: 50 * time.Millisecond}, Endpoint: "http://" + listener.Addr().String(), Anonymous: true})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err = c.List(ctx, func(store.Object) error { return nil })
			require.ErrorIs(t, err, store.ErrStalled)
			require.NoError(t, ctx.Err(), "it was the watchdog that ended it")
		})
	}
}
