package eviction

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ReleasedAt returns when a volume was released, rounded up to the second. Its age counts from then. The
// NodeStorage has no finer times, so a plan that is based on a report agrees with the daemon's.
func ReleasedAt(v *inventory.Volume) time.Time {
	return v.Released.Add(time.Second - 1).Truncate(time.Second)
}

// NextOfAge returns when the next volume becomes old enough to be evicted, so that its room can be promised;
// zero if there is none.
func NextOfAge(view View, minAge time.Duration) (first time.Time) {
	for i := range view.Volumes {
		v := &view.Volumes[i]
		var at time.Time
		switch {
		case v.State == volume.Unreferenced && v.Cluster == view.Cluster:
			at = ReleasedAt(v).Add(minAge)
		case v.State == volume.Ready && v.Kind == volume.Dataset:
			at = lastSeen(v).Add(minAge)
		default:
			continue
		}
		if at.After(view.Now) && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
