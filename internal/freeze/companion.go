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

// variable is the environment variable that marks a process as the companion. It holds the number
// of directories that the companion was started with, and after how long it thaws their file
// systems.
const variable = "FLEXLVM_THAW"

// again is how often the companion thaws them from then on.
const again = time.Second

func ask(roots int, after time.Duration) string {
	return fmt.Sprintf("%s=%d %d", variable, roots, after)
}

// Serve must be called first by the main of a program that calls Prepare. In the companion it does
// the companion's work and ends the process; elsewhere it returns immediately.
func Serve() {
	text, is := os.LookupEnv(variable)
	if !is {
		return
	}
	if err := accompany(text); err != nil {
		os.Exit(1) // nobody reads its output
	}
	os.Exit(0)
}

// accompany waits until the watched process reports that it is done, or ends without that report:
// then it was killed, and accompany thaws the file systems. If neither happens in time, it thaws them
// anyway, and repeats that every second, because the process may freeze another one after each
// attempt. A process that is done has thawed what it had frozen, and other file systems may be frozen
// by somebody else.
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
		n, _ := io.Copy(io.Discard, os.Stdin) // an error counts as an end
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
			_ = thawAll(roots) // it is retried
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
