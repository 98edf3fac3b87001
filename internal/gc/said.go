package gc

import (
	"sync"
	"time"
)

// sayAgain is how often a state that lasts is told: events are forgotten after an
// hour.
const sayAgain = 30 * time.Minute

// said remembers what was told, so that a state is told when it begins and when
// it changes, and not in every round. It may be used from several goroutines.
type said struct {
	mu sync.Mutex
	by map[string]utterance
}

type utterance struct {
	text string
	at   time.Time
}

func newSaid() *said { return &said{by: map[string]utterance{}} }

// fresh tells whether text about a topic is worth telling now.
func (s *said) fresh(topic, text string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, there := s.by[topic]
	if there && u.text == text && now.Sub(u.at) < sayAgain {
		return false
	}
	s.by[topic] = utterance{text: text, at: now}
	return true
}

// over tells whether a topic was open, and closes it.
func (s *said) over(topic string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := s.by[topic]
	delete(s.by, topic)
	return there
}

// sweep forgets what has not been told for long.
func (s *said) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, u := range s.by {
		if now.Sub(u.at) > 2*sayAgain {
			delete(s.by, topic)
		}
	}
}
