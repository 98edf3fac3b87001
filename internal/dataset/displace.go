package dataset

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
)

const (
	// beforeDisplacing is how long no node has had room before others are displaced.
	beforeDisplacing = 30 * time.Second
	// betweenDisplacings is how long what was displaced may take to go, and its room to be
	// seen, before more is.
	betweenDisplacings = 3 * time.Minute
)

// An occupant is a replica of another dataset that may be displaced: it is complete, its
// dataset allows it, and no pod reads or wants that.
type occupant struct {
	claim    client.Object
	of       string // its dataset, for people
	node     string
	size     int64
	lastRead time.Time
}

// An appeal is what a replica needs for which no node has room.
type appeal struct {
	need int64
	free map[string]int64 // by the nodes that it may lie on
}

// victims are the replicas that make way, all on one node; none if that would not help on
// any. On each node the least recently read go first, and none that is not needed. Of the
// nodes the one is taken whose victims were read longest ago.
func victims(a appeal, occupants []occupant) []occupant {
	byNode := map[string][]occupant{}
	for _, o := range occupants {
		if _, may := a.free[o.node]; may {
			byNode[o.node] = append(byNode[o.node], o)
		}
	}
	var best []occupant
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		if a.free[node] >= a.need {
			return nil // there is room by now
		}
		chosen := enough(a.need-a.free[node], byNode[node])
		if len(chosen) == 0 {
			continue
		}
		if best == nil || cmp.Or(newest(chosen).Compare(newest(best)), len(chosen)-len(best)) < 0 {
			best = chosen
		}
	}
	return best
}

// enough are the least recently read that together give so much; none if all do not.
func enough(missing int64, of []occupant) []occupant {
	slices.SortFunc(of, func(a, b occupant) int {
		return cmp.Or(a.lastRead.Compare(b.lastRead), cmp.Compare(b.size, a.size), cmp.Compare(a.of, b.of), cmp.Compare(a.claim.GetName(), b.claim.GetName()))
	})
	var out []occupant
	sum := int64(0)
	for _, o := range of {
		if sum >= missing {
			break
		}
		out, sum = append(out, o), sum+o.size
	}
	if sum < missing {
		return nil
	}
	// Those that turn out not to be needed stay, the most recently read first.
	for i := len(out) - 1; i >= 0; i-- {
		if sum-out[i].size >= missing {
			sum -= out[i].size
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

func newest(of []occupant) (at time.Time) {
	for _, o := range of {
		if o.lastRead.After(at) {
			at = o.lastRead
		}
	}
	return at
}

// starves reports whether a replica may displace others now: no node has had room for it
// for a while, and it asks for that. One that was itself displaced may only while a pod
// wants it, so that no two displace each other in turns.
func (p *planner) starves(r *Replica) bool {
	if !p.Source.Displaces || r.Claim == nil || going(r.Claim) || !isPending(r.Claim) || r.Pod == nil || r.Pod.DeletionTimestamp != nil {
		return false
	}
	if r.Claim.Annotations[annotationWasDisplaced] != "" && len(p.InUse) == 0 {
		return false
	}
	return kubeobject.PodNotScheduledFor(r.Pod, corev1.PodReasonUnschedulable) &&
		p.Now.Sub(r.Pod.CreationTimestamp.Time) >= beforeDisplacing && p.Now.Sub(timeOf(r.Claim, annotationMakesRoom)) >= betweenDisplacings
}

// timeOf is a time of an annotation; the zero time if there is none.
func timeOf(object client.Object, key string) time.Time {
	at, err := time.Parse(time.RFC3339, object.GetAnnotations()[key])
	if err != nil {
		return time.Time{}
	}
	return at
}
