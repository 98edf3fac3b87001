package fetch

import (
	"os"
	"runtime"
	"sync"
)

// processors is shared by the whole process, like GOMAXPROCS.
var processors extraProcessor

// An extraProcessor is one more processor for Go's scheduler than the process has. While a goroutine waits in the
// kernel for the disk, Go reassigns its processor only after a moment: with an extra one the content of
// large objects is hashed meanwhile. It slows small objects down, because Go searches for work in more
// places: their processor time rises by a quarter (docs/benchmarks.md).
type extraProcessor struct {
	mu    sync.Mutex
	users int
}

// add provides the extra processor until release is called. A GOMAXPROCS in the environment stays as it
// is.
func (s *extraProcessor) add() (release func()) {
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

func (s *extraProcessor) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		runtime.SetDefaultGOMAXPROCS()
	}
}
