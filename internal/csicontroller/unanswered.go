package csicontroller

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// answerLimit is how long a node may leave the PersistentVolume of a snapshot unanswered. It is longer than an
// update of the node daemon, or the copies that the daemon creates first, usually take. If it is too short, the
// snapshot is only taken later, in another attempt.
const answerLimit = 3 * time.Minute

// unanswered records when this process first saw the PersistentVolumes of snapshots that are not taken. Their
// creation timestamps come from the API server's clock, which may differ from this one.
type unanswered struct {
	mu    sync.Mutex
	since map[types.UID]time.Time
}

// tooLong reports whether this process first saw a PersistentVolume more than answerLimit ago. The first call for
// a PersistentVolume records it.
func (u *unanswered) tooLong(uid types.UID, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if since, known := u.since[uid]; known {
		return now.Sub(since) > answerLimit
	}
	// Calls for a PersistentVolume end soon after answerLimit, so old entries are no longer needed.
	maps.DeleteFunc(u.since, func(_ types.UID, at time.Time) bool { return now.Sub(at) > 20*answerLimit })
	if u.since == nil {
		u.since = map[types.UID]time.Time{}
	}
	u.since[uid] = now
	return false
}
