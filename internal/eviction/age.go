package eviction

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// NextOfAge returns when the next volume becomes old enough to be evicted, so that its
// room may be promised; zero if none will.
func NextOfAge(view View, minAge time.Duration) (first time.Time) {
	for i := range view.Volumes {
		v := &view.Volumes[i]
		var at time.Time
		switch {
		case v.State == volume.Unreferenced && v.Cluster == view.Cluster:
			at = v.Released.Add(minAge)
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
