package dataset

import (
	"maps"
	"sync"
	"time"
)

// mostBetweenLooks is how long after one look for a volume's pods the next may come. After a longer
// pause, a pod may have written and be gone that neither saw.
const mostBetweenLooks = 30 * time.Second

// looks remember, by the hashes of volumes, when their pods were listed. They are of this process
// alone: an earlier one may have ended long before.
type looks struct {
	mu sync.Mutex
	of map[string]look
}

// A look is when the pods of a volume were listed last, and since when without a pause.
type look struct{ since, last time.Time }

// note records that the pods of a volume were listed, and returns since when they have been without a
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
