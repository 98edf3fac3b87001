package dataset

import (
	"maps"
	"sync"
	"time"
)

// maxListGap is the longest pause between two lists of a volume's pods. In a longer pause, a pod that
// neither list shows may have written and been deleted.
const maxListGap = 30 * time.Second

// podLists records, by the hashes of volumes, when their pods were listed. It is not persisted, because the previous
// process may have ended long ago.
type podLists struct {
	mu sync.Mutex
	of map[string]podList
}

// A podList records when the pods of a volume were last listed, and since when without a pause.
type podList struct{ since, last time.Time }

// add records that the pods of a volume were listed, and returns since when they have been listed without a longer
// pause than maxListGap.
func (l *podLists) add(hash string, at time.Time) (since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.of, func(_ string, was podList) bool { return at.Sub(was.last) > maxListGap })
	if l.of == nil {
		l.of = map[string]podList{}
	}
	was, known := l.of[hash]
	if !known {
		was.since = at
	}
	l.of[hash] = podList{since: was.since, last: at}
	return was.since
}
