package eviction

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// startTime is how long a start counts: a pod that has not started by then waits for
	// something else.
	startTime = time.Minute
	// MostStarts is how long starts that follow one another hold up what can wait.
	MostStarts = time.Minute
)

// Starts remembers what has been about to start on a node: pods with volumes, and volumes
// that are not made yet, or just made, and that no pod has mounted. Meanwhile evictions that
// nobody waits for would compete with the first mount and the container for LVM's locks and for
// the disk. Its zero value remembers nothing.
type Starts struct {
	seen  map[types.UID]time.Time // when first
	since time.Time               // starts have followed one another; zero: nothing starts
}

// Until returns until when what can wait leaves the node to starts; a time that is not after
// view.Now is no reason to wait. It counts from when it first saw each of pods, which use
// volumes and do not run yet, and each PersistentVolume whose volume no pod can have had. It takes
// a view more than once.
func (s *Starts) Until(view View, pods []types.UID) time.Time {
	seen := map[types.UID]time.Time{}
	last := time.Time{}
	for _, id := range append(unmounted(view), pods...) {
		first, known := s.seen[id]
		if !known || first.After(view.Now) { // the clock may have been set back
			first = view.Now
		}
		seen[id] = first
		if end := first.Add(startTime); end.After(last) {
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
	if bound := s.since.Add(MostStarts); bound.Before(last) {
		return bound
	}
	return last
}

// unmounted are the PersistentVolumes that a pod can use and that have no volume yet, or one that
// was made within startTime and is not open: most are made before their pods come to the node.
func unmounted(view View) (out []types.UID) {
	settled := make(map[Key]bool, len(view.Volumes))
	for i := range view.Volumes {
		v := &view.Volumes[i]
		settled[KeyOf(v)] = v.Open || v.State != volume.Creating && v.State != volume.Ready || view.Now.Sub(v.Created) >= startTime
	}
	for i := range view.PersistentVolumes {
		c := &view.PersistentVolumes[i]
		if c.Usable() && !view.givenUp(c) && !view.staysGone(c) && !settled[KeyOfPersistentVolume(c)] {
			out = append(out, c.UID)
		}
	}
	return out
}

// postpone has what would go for headroom or a threshold stay for now if pods are about to start,
// and reports whether it does. Thin pools do not wait: they fail when they are full.
func (p *planner) postpone(in *pool) bool {
	if in.Thin != nil || !p.view.StartsUntil.After(p.view.Now) {
		return false
	}
	in.putOff, p.result.Waits = true, true
	return true
}
