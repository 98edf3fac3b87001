package nodeagent

import (
	"sync"
	"time"
)

// repeatAfter is how often a lasting state is announced, because events expire after an hour.
const repeatAfter = 30 * time.Minute

// dedupe remembers announcements, so that a state is announced when it begins and when it changes, not in every
// round. It may be used from several goroutines.
type dedupe struct {
	mu sync.Mutex
	by map[string]announcement
}

type announcement struct {
	text string
	at   time.Time
}

func newDedupe() *dedupe { return &dedupe{by: map[string]announcement{}} }

// note records a text about a topic, and reports whether it is to be announced now.
func (d *dedupe) note(topic, text string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, there := d.by[topic]
	if there && u.text == text && now.Sub(u.at) < repeatAfter {
		return false
	}
	d.by[topic] = announcement{text: text, at: now}
	return true
}

// end closes a topic, and reports whether it was open.
func (d *dedupe) end(topic string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, there := d.by[topic]
	delete(d.by, topic)
	return there
}

// sweep drops announcements that have not been repeated for a long time.
func (d *dedupe) sweep(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for topic, u := range d.by {
		if now.Sub(u.at) > 2*repeatAfter {
			delete(d.by, topic)
		}
	}
}
