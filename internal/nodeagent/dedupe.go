package nodeagent

import (
	"sync"
	"time"
)

// repeatAfter is how often a state that lasts is told: events are forgotten after an
// hour.
const repeatAfter = 30 * time.Minute

// dedupe remembers what was told, so that a state is told when it begins and when
// it changes, and not in every round. It may be used from several goroutines.
type dedupe struct {
	mu sync.Mutex
	by map[string]announcement
}

type announcement struct {
	text string
	at   time.Time
}

func newDedupe() *dedupe { return &dedupe{by: map[string]announcement{}} }

// fresh tells whether text about a topic is worth telling now.
func (s *dedupe) fresh(topic, text string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, there := s.by[topic]
	if there && u.text == text && now.Sub(u.at) < repeatAfter {
		return false
	}
	s.by[topic] = announcement{text: text, at: now}
	return true
}

// over tells whether a topic was open, and closes it.
func (s *dedupe) over(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.by[topic]
	delete(s.by, topic)
	return there
}

// sweep forgets what has not been told for long.
func (s *dedupe) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, u := range s.by {
		if now.Sub(u.at) > 2*repeatAfter {
			delete(s.by, topic)
		}
	}
}
