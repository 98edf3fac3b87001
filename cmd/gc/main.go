// Command gc is the node daemon of flexlvm: it removes volumes that are no longer wanted,
// makes room when a pool fills up, and reports what the node holds.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/flexlvm/flexlvm/internal/freeze"
)

func main() {
	freeze.Serve() // which ends this process where it is a companion
	bound()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "gc:", err)
		os.Exit(1)
	}
}

// giveBackPeriod is rarer than rounds may be: each time is a whole garbage collection.
const giveBackPeriod = time.Minute

// giveBack returns to the node, now and then until ctx ends, the memory that rounds took.
func giveBack(ctx context.Context) {
	ticker := time.NewTicker(giveBackPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			debug.FreeOSMemory()
		}
	}
}

// bound keeps a process small that runs on every node and is idle most of the
// time: it collects early, and does not take the memory that a thread on each of
// many processors would.
func bound() {
	const processors, percent = 4, 25
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(runtime.NumCPU(), processors))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
