// Package pause sleeps until a time or the end of a context.
package pause

import (
	"context"
	"time"
)

// For waits for d. If ctx ends before, it returns ctx.Err().
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
