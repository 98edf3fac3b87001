// Command fetch fills a directory with a dataset, or uploads one.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// errRefused: the run is complete, except for keys that cannot be files.
var errRefused = errors.New("some keys were refused")

// usageError is an error in the call of the program.
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
	var failed *store.Error
	var usage usageError
	switch {
	case err == nil:
		return protocol.ExitComplete
	case errors.Is(err, errRefused):
		return protocol.ExitRefused
	case errors.Is(err, errTimeout):
		return protocol.ExitTimeout
	case errors.As(err, &usage), errors.As(err, &failed) && failed.Usage:
		return protocol.ExitUsage
	case errors.As(err, &failed) && failed.Retryable:
		return protocol.ExitTemporary
	case errors.As(err, &failed):
		return protocol.ExitFailed
	}
	return protocol.ExitUsage // cobra's own errors: an unknown flag, a missing argument
}
