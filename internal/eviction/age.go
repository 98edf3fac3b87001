package eviction

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// ReleasedAt is when a volume was released, to the next second. Its age counts from then, and
// the NodeStorage has no finer times: so what is planned from a report is what the daemon
// does.
func ReleasedAt(v *inventory.Volume) time.Time {
	return v.Released.Add(time.Second - 1).Truncate(time.Second)
}

// NextOfAge returns when the next volume becomes old enough to be evicted, so that its
// room may be promised; zero if none will.
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
