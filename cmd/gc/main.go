// Command gc is the node daemon of flexlvm: it removes volumes that are no longer wanted,
// makes room when a pool fills up, and reports what the node holds.
package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
)

func main() {
	bound()
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "gc:", err)
		os.Exit(1)
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
