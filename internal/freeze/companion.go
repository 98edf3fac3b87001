package freeze

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// variable is the environment variable by which the companion knows what it is. It holds the number
// of directories that it was started with, and after how long it thaws their file systems.
const variable = "FLEXLVM_THAW"

// again is how often the companion thaws from then on.
const again = time.Second

func ask(roots int, after time.Duration) string {
	return fmt.Sprintf("%s=%d %d", variable, roots, after)
}

// Serve must be called first by the main of a program that calls Prepare. In its companion it does
// the companion's work and ends the process; elsewhere it returns at once.
func Serve() {
	text, is := os.LookupEnv(variable)
	if !is {
		return
	}
	if err := accompany(text); err != nil {
		os.Exit(1) // nobody reads what it would say
	}
	os.Exit(0)
}

// accompany waits until the process that it watches over is done, or has ended before: then it thaws,
// for that was killed. Where either takes too long it thaws before, again and again, for a freeze
// may only just have been done. A process that is done has thawed what it had frozen, and the rest may
// be frozen by somebody else.
func accompany(asked string) error {
	var n int
	var after time.Duration
	if _, err := fmt.Sscanf(asked, "%d %d", &n, &after); err != nil {
		return err
	}
	var roots []*os.File
	for i := range n {
		roots = append(roots, os.NewFile(uintptr(3+i), fmt.Sprint("descriptor ", 3+i)))
	}
	// Signals that stop the services of a node must not end the companion before it has thawed.
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	done := make(chan bool, 1)
	go func() {
		n, _ := io.Copy(io.Discard, os.Stdin) // an error is as good as an end
		done <- n > 0
	}()
	fmt.Println("at work")
	for next := after; ; next = again {
		select {
		case is := <-done:
			if is {
				return nil
			}
			return thawAll(roots)
		case <-time.After(next):
			_ = thawAll(roots) // it is tried again
		}
	}
}

func thawAll(roots []*os.File) error {
	var failures []error
	for _, root := range roots {
		_, err := Thaw(root)
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
