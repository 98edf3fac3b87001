package eviction

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// FutureTimes remembers timestamps of volumes that are in the future, because the clock was set back, and when
// each was first seen. That time replaces the timestamp; otherwise the volume would count as young until that
// date. The zero value is ready to use.
//
// A new process remembers nothing, and treats such a volume as new again. So the volume may be evicted later
// than it should be, but never earlier.
type FutureTimes struct {
	seen map[stamp]time.Time
}

// A stamp is a time that a volume or a PersistentVolume carries.
type stamp struct {
	uid string
	at  int64 // in nanoseconds
}

// Replace replaces each timestamp after now by the time at which it was first seen, and forgets the
// timestamps of all other volumes.
func (f *FutureTimes) Replace(now time.Time, volumes []inventory.Volume) {
	seen := map[stamp]time.Time{}
	for i := range volumes {
		v := &volumes[i]
		f.replace(now, seen, v.UUID, &v.Created, &v.LastUsed, &v.Released)
	}
	f.seen = seen
}

// ReplaceEvictable is Replace for Replica.Evictable of PersistentVolumes.
func (f *FutureTimes) ReplaceEvictable(now time.Time, pvs []persistentvolume.Volume) {
	seen := map[stamp]time.Time{}
	for i := range pvs {
		c := &pvs[i]
		f.replace(now, seen, string(c.UID), &c.Replica.Evictable)
	}
	f.seen = seen
}

func (f *FutureTimes) replace(now time.Time, seen map[stamp]time.Time, uid string, times ...*time.Time) {
	for _, t := range times {
		if !t.After(now) {
			continue
		}
		its := stamp{uid, t.UnixNano()}
		first, known := f.seen[its]
		if !known || first.After(now) { // the clock may have been set back again
			first = now
		}
		seen[its], *t = first, first
	}
}
