// Command fetch fills a directory with a dataset, or uploads one.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/flexlvm/flexlvm/internal/fetch"
)

// Exit codes, which Jobs rely on.
const (
	exitComplete  = 0
	exitFailed    = 1
	exitUsage     = 2
	exitRefused   = 3
	exitTemporary = 75 // EX_TEMPFAIL of sysexits(3)
)

// errRefused: all is there but for keys that cannot be files.
var errRefused = errors.New("some keys were refused")

// usageError is an error in how the program was called.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fetch:", err)
	}
	os.Exit(exitCode(err))
}

func exitCode(err error) int {
	var failed *fetch.Error
	var usage usageError
	switch {
	case err == nil:
		return exitComplete
	case errors.Is(err, errRefused):
		return exitRefused
	case errors.As(err, &usage), errors.As(err, &failed) && failed.Usage:
		return exitUsage
	case errors.As(err, &failed) && failed.Retryable:
		return exitTemporary
	case errors.As(err, &failed):
		return exitFailed
	}
	return exitUsage // cobra's own errors: an unknown flag, a missing argument
}
