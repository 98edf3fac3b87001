package fetch

import (
	"os"
	"runtime"
	"sync"
)

// processors are those of the process, to which GOMAXPROCS belongs.
var processors spare

// A spare processor is one more for Go's scheduler than the process has. While a goroutine waits in
// the kernel for the disk, Go gives its processor to another only after a moment: with a spare one
// the contents of large objects are hashed meanwhile. Small objects lose by it, as Go looks for work
// in more places: their processor time rises by a quarter (docs/benchmarks.md).
type spare struct {
	mu    sync.Mutex
	users int
}

// add sees to the spare processor until what it returns is called. A GOMAXPROCS in the environment
// stays as it is.
func (s *spare) add() (release func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users++; s.users == 1 {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
	return s.release
}

func (s *spare) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		runtime.SetDefaultGOMAXPROCS()
	}
}
