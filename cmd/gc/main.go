// Command gc is flexlvm's node daemon: it removes volumes that are no longer needed, makes room when a pool
// fills up, and reports what is on the node.
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
	freeze.Serve() // does not return in a companion process
	bound()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "gc:", err)
		os.Exit(1)
	}
}

// giveBackPeriod is longer than the interval of reconcile passes may be, because each time is a complete
// garbage collection.
const giveBackPeriod = time.Minute

// giveBack periodically returns to the node the memory that reconcile passes used, until ctx is done.
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

// bound limits the memory of a process that runs on every node and is idle most of the time: it collects
// garbage early and limits the number of threads, whose memory grows with the number of processors.
func bound() {
	const processors, percent = 4, 25
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(min(runtime.NumCPU(), processors))
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
