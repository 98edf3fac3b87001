package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// longestLook bounds a scan, which reads from disks and takes seconds. A longer one counts as failed, because
// its results may be outdated.
const longestLook = 5 * time.Minute

// errEnding: the daemon stops, and the next one may be running already.
var errEnding = errors.New("the node daemon ends")

// A currentLook is the scan that is running.
type currentLook struct {
	began time.Time // zero: none runs
	path  string    // the path being judged; empty while the scan finds disks or finishes
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

// hung returns an error while a scan runs for longer than longestLook.
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
	return fmt.Errorf("an examination of the disks that began at %s has not ended within %s%s: see the kernel's log (dmesg) for a disk that hangs", look.began.UTC().Format(time.RFC3339), longestLook, at)
}

// attend does until ctx ends what must not wait for a scan: it confirms cleanings, and reports a hung scan as
// failed.
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
