package eviction

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// startTimeout is how long a start counts: a pod that has not started by then waits for something else.
	startTimeout = time.Minute
	// MaxPostponement is how long consecutive starts postpone evictions that can wait.
	MaxPostponement = time.Minute
)

// Starts remembers the starts that are under way on a node: pods with volumes, and PersistentVolumes whose
// volumes do not exist yet or are new and not mounted. Meanwhile, evictions that can wait would compete with
// the first mount and the container for LVM's locks and for the disk. Its zero value is ready to use.
type Starts struct {
	seen  map[types.UID]time.Time // when each was first seen
	since time.Time               // when consecutive starts began; zero: nothing starts
}

// Until returns until when evictions that can wait are postponed; not at all if that is not after view.Now. A
// start counts from when Until first saw it: a pod in pods, which use volumes and do not run yet, or a
// PersistentVolume whose volume no pod can have mounted. Until may be called several times with the same view.
func (s *Starts) Until(view View, pods []types.UID) time.Time {
	seen := map[types.UID]time.Time{}
	last := time.Time{}
	for _, id := range append(unmounted(view), pods...) {
		first, known := s.seen[id]
		if !known || first.After(view.Now) { // the clock may have been set back
			first = view.Now
		}
		seen[id] = first
		if end := first.Add(startTimeout); end.After(last) {
			last = end
		}
	}
	s.seen = seen
	if !last.After(view.Now) {
		s.since = time.Time{}
		return time.Time{}
	}
	if s.since.IsZero() || s.since.After(view.Now) {
		s.since = view.Now
	}
	if bound := s.since.Add(MaxPostponement); bound.Before(last) {
		return bound
	}
	return last
}

// unmounted returns the usable PersistentVolumes whose volumes do not exist yet, or were created within
// startTimeout and are not open: most are created before their pods reach the node.
func unmounted(view View) (out []types.UID) {
	settled := make(map[Key]bool, len(view.Volumes))
	for i := range view.Volumes {
		v := &view.Volumes[i]
		settled[KeyOf(v)] = v.Open || v.State != volume.Creating && v.State != volume.Ready || view.Now.Sub(v.Created) >= startTimeout
	}
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		if c.Usable() && !view.givenUp(c) && !view.staysGone(c) && !settled[KeyOfPersistentVolume(c)] {
			out = append(out, c.UID)
		}
	}
	return out
}

// postpone reports whether evictions for headroom or a threshold are postponed, because pods are starting, and
// records that. Thin pools do not wait, because they fail when they are full.
func (p *planner) postpone(pool *poolPlan) bool {
	if pool.Thin != nil || !p.view.StartsUntil.After(p.view.Now) {
		return false
	}
	pool.postponed, p.result.Postponed = true, true
	return true
}
