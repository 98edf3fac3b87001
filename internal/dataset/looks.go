package dataset

import (
	"maps"
	"sync"
	"time"
)

// mostBetweenLooks is the longest pause between two lists of a volume's pods. In a longer pause, a pod that
// neither list shows may have written and been deleted.
const mostBetweenLooks = 30 * time.Second

// looks records, by the hashes of volumes, when their pods were listed. It holds only for this process: the
// process before may have ended long ago.
type looks struct {
	mu sync.Mutex
	of map[string]look
}

// A look records when the pods of a volume were last listed, and since when without a pause.
type look struct{ since, last time.Time }

// note records that the pods of a volume were listed, and returns since when they have been listed without a
// pause.
func (l *looks) note(hash string, at time.Time) (since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.of, func(_ string, was look) bool { return at.Sub(was.last) > mostBetweenLooks })
	if l.of == nil {
		l.of = map[string]look{}
	}
	was, known := l.of[hash]
	if !known {
		was.since = at
	}
	l.of[hash] = look{since: was.since, last: at}
	return was.since
}
