package dataset

import (
	"maps"
	"sync"
	"time"
)

// maxListGap is the longest pause between two lists of a volume's pods. In a longer pause, a pod that
// neither list shows may have written and been deleted.
const maxListGap = 30 * time.Second

// podLists records when pods were listed, by the hashes of their volumes or by the UIDs of Jobs without pods. It is not
// persisted, because the previous process may have ended long ago.
type podLists struct {
	gap time.Duration // the longest pause between two lists
	mu  sync.Mutex
	of  map[string]podList
}

// A podList records when pods were last listed, and since when without a pause.
type podList struct{ since, last time.Time }

// add records that the pods of key were listed, and returns since when they have been listed without a longer pause
// than the gap.
func (l *podLists) add(key string, at time.Time) (since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.of, func(_ string, was podList) bool { return at.Sub(was.last) > l.gap })
	if l.of == nil {
		l.of = map[string]podList{}
	}
	was, known := l.of[key]
	if !known {
		was.since = at
	}
	l.of[key] = podList{since: was.since, last: at}
	return was.since
}

// remove has the next add of key begin again.
func (l *podLists) remove(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, key)
}
