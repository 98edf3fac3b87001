package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// longestLook is how long a look may last, which reads from disks and takes seconds. Then it counts as
// failed: nobody knows how things are by now.
const longestLook = 5 * time.Minute

// errEnding: the daemon ends, and the next one may be at work already.
var errEnding = errors.New("the node daemon ends")

// A currentLook is the look that runs.
type currentLook struct {
	began time.Time // zero: none runs
	path  string    // what it is looking at; empty while it finds and while it ends
}

func (s *discoverer) isAt(look currentLook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = look
}

func (s *discoverer) isLookingAt(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.path = path
}

// hung fails while a look runs that has lasted too long.
func (s *discoverer) hung() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	look := s.current
	if look.began.IsZero() || s.d.cfg.Now().Sub(look.began) <= longestLook {
		return nil
	}
	at := ""
	if look.path != "" {
		at = ", and is at " + look.path
	}
	return fmt.Errorf("a look that began at %s has not ended within %s%s: see the kernel's log (dmesg) for a disk that hangs", look.began.UTC().Format(time.RFC3339), longestLook, at)
}

// attend sees, until ctx ends, to what must not wait for a look: that cleanings are confirmed, and that
// a look that does not end counts as failed.
func (s *discoverer) attend(ctx context.Context) {
	ticker := time.NewTicker(min(discoverEvery/4, s.d.cfg.Interval))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.confirmCleanings(ctx)
		if err := s.hung(); err != nil {
			s.fail(ctx, err)
		}
	}
}
