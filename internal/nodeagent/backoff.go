package nodeagent

import (
	"sync"
	"time"
)

// A retry is something that failed and is tried again later.
type retry struct {
	until time.Time
	delay time.Duration
	times int
	why   string
}

// backoff keeps them by the UID of what they befell: a volume of LVM's, or a
// PersistentVolume. Each is tried again after first, twice as late every time, up
// to most. It may be used from several goroutines.
type backoff struct {
	first, most time.Duration

	mu   sync.Mutex
	byID map[string]retry
}

func newBackoff(first, most time.Duration) *backoff {
	return &backoff{first: first, most: most, byID: map[string]retry{}}
}

// add notes that a try has failed, or has changed nothing.
func (s *backoff) add(id string, now time.Time, why string) retry {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.byID[id]
	b.delay = min(max(2*b.delay, s.first), s.most)
	b.until = now.Add(b.delay)
	b.times++
	b.why = why
	s.byID[id] = b
	return b
}

func (s *backoff) clear(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
}

// waits tells whether it is too early to try again.
func (s *backoff) waits(id string, now time.Time) bool {
	b, failed := s.failed(id)
	return failed && now.Before(b.until)
}

// failed tells whether it has failed, also where it may be tried again by now.
func (s *backoff) failed(id string) (retry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, there := s.byID[id]
	return b, there
}

// times tells how often it has failed.
func (s *backoff) times(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id].times
}

// keep forgets what befell things that are not there any more.
func (s *backoff) keep(there map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.byID {
		if !there[id] {
			delete(s.byID, id)
		}
	}
}

// next is when the first of those that wait may be tried again; zero for none.
func (s *backoff) next(now time.Time) (first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.byID {
		if b.until.After(now) && (first.IsZero() || b.until.Before(first)) {
			first = b.until
		}
	}
	return first
}
