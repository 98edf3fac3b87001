package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// maxScanTime bounds a scan, which reads from disks and takes seconds. A longer one counts as failed, because
// its results may be outdated.
const maxScanTime = 5 * time.Minute

// errEnding: the daemon stops, and the next one may be running already.
var errEnding = errors.New("the node daemon ends")

// A currentScan is the scan that is running.
type currentScan struct {
	began time.Time // zero: none runs
	path  string    // the path being judged; empty while the scan finds disks or finishes
}

func (s *discoverer) setScan(scan currentScan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = scan
}

func (s *discoverer) setScanPath(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.path = path
}

// hung returns an error while a scan runs for longer than maxScanTime.
func (s *discoverer) hung() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	scan := s.current
	if scan.began.IsZero() || s.d.cfg.Now().Sub(scan.began) <= maxScanTime {
		return nil
	}
	at := ""
	if scan.path != "" {
		at = ", and is at " + scan.path
	}
	return fmt.Errorf("an examination of the disks that began at %s has not ended within %s%s: see the kernel's log (dmesg) for a disk that hangs", scan.began.UTC().Format(time.RFC3339), maxScanTime, at)
}

// superviseScans does until ctx ends what must not wait for a scan: it confirms cleanings, and reports a hung scan as
// failed.
func (s *discoverer) superviseScans(ctx context.Context) {
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
