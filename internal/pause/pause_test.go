package pause

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, For(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(began))
		require.NoError(t, For(t.Context(), -time.Minute))
		require.Equal(t, time.Minute, time.Since(began))

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the cause, which the caller can get from ctx"))
		defer cancel()
		require.Equal(t, context.DeadlineExceeded, For(ctx, time.Minute))
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}
