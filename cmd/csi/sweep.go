package main

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/sirupsen/logrus"
)

// sweepPeriod is how long an unused encrypted volume may stay open, or the device of an unused raw block volume
// may exist, after a call was killed. Until then the volume cannot be evicted, and the kernel holds its key.
const sweepPeriod = time.Minute

// sweep closes encrypted and raw block volumes that nothing has mounted, immediately and then at each tick
// until ctx is done. It also returns to the node the memory that calls used, because the next call may be hours
// away.
func sweep(ctx context.Context, ticks <-chan time.Time, closeUnused func(context.Context) error, log logrus.FieldLogger) {
	for {
		if err := closeUnused(ctx); err != nil && ctx.Err() == nil {
			log.WithError(err).Warn("an unused volume was not closed; retrying")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			debug.FreeOSMemory()
		}
	}
}
