package eviction

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// Ahead remembers the times of volumes that lie ahead of the clock, and when each was
// first seen to: a clock that was set back leaves such times, and by themselves they would
// keep a volume young until their day comes. Its zero value remembers nothing.
//
// A process that begins with nothing takes such a volume for new once more. So it may go
// later than it should, and never earlier.
type Ahead struct {
	seen map[stamp]time.Time
}

// A stamp is a time that a volume or a PersistentVolume carries.
type stamp struct {
	uid string
	at  int64 // in nanoseconds
}

// Replace puts in the place of every time that lies ahead of now when it was first seen.
// What it remembers of volumes that it is not given is forgotten.
func (a *Ahead) Replace(now time.Time, volumes []inventory.Volume) {
	seen := map[stamp]time.Time{}
	for i := range volumes {
		v := &volumes[i]
		a.replace(now, seen, v.UUID, &v.Created, &v.LastUsed, &v.Released)
	}
	a.seen = seen
}

// ReplaceEvictable is Replace for since when the replicas of PersistentVolumes are past recall.
func (a *Ahead) ReplaceEvictable(now time.Time, claims []persistentvolume.Volume) {
	seen := map[stamp]time.Time{}
	for i := range claims {
		c := &claims[i]
		a.replace(now, seen, string(c.UID), &c.Replica.Evictable)
	}
	a.seen = seen
}

func (a *Ahead) replace(now time.Time, seen map[stamp]time.Time, uid string, times ...*time.Time) {
	for _, t := range times {
		if !t.After(now) {
			continue
		}
		its := stamp{uid, t.UnixNano()}
		first, known := a.seen[its]
		if !known || first.After(now) { // the clock may have been set back once more
			first = now
		}
		seen[its], *t = first, first
	}
}
