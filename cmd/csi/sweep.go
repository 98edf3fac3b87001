package main

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/sirupsen/logrus"
)

// sweepPeriod is how long an encrypted volume that nobody uses may stay open, or the device of a
// raw block volume there, after a call was killed: until then it cannot be evicted, and the kernel
// holds its key.
const sweepPeriod = time.Minute

// sweep closes the encrypted and the raw block volumes that nobody has mounted, at once and then each time that
// the clock ticks, until ctx ends. It also returns to the node the memory that calls took: for
// hours there may be none.
func sweep(ctx context.Context, ticks <-chan time.Time, closeUnused func(context.Context) error, log logrus.FieldLogger) {
	for {
		if err := closeUnused(ctx); err != nil && ctx.Err() == nil {
			log.WithError(err).Warn("a volume that nobody uses was not closed; that is tried again")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticks:
			debug.FreeOSMemory()
		}
	}
}
