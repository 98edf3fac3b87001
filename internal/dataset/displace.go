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
	// beforeDisplacing is how long no node must have had room before others are displaced.
	beforeDisplacing = 30 * time.Second
	// betweenDisplacings is how long displaced replicas may take to go, and their room to be observed, before
	// more are displaced.
	betweenDisplacings = 3 * time.Minute
)

// An occupant is a replica of another dataset that may be displaced: it is complete, its dataset allows
// displacing, and no pod reads the dataset or waits for it.
type occupant struct {
	claim    client.Object
	of       string // its dataset, for messages
	node     string
	size     int64
	lastRead time.Time
}

// A roomRequest is the room that a replica lacks on every node.
type roomRequest struct {
	need int64
	free map[string]int64 // by the nodes that the replica may be on
}

// victims returns the replicas to displace, all on one node; none if that would help on no node. On each node
// it chooses the least recently read replicas, and only as many as are needed. Of the nodes it chooses the one
// whose victims were read longest ago.
func victims(request roomRequest, occupants []occupant) []occupant {
	byNode := map[string][]occupant{}
	for _, o := range occupants {
		if _, may := request.free[o.node]; may {
			byNode[o.node] = append(byNode[o.node], o)
		}
	}
	var best []occupant
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		if request.free[node] >= request.need {
			return nil // there is room now
		}
		chosen := leastRecentlyRead(request.need-request.free[node], byNode[node])
		if len(chosen) == 0 {
			continue
		}
		if best == nil || cmp.Or(newest(chosen).Compare(newest(best)), len(chosen)-len(best)) < 0 {
			best = chosen
		}
	}
	return best
}

// leastRecentlyRead returns the least recently read occupants that together have the missing size; none if all of
// them together are too small.
func leastRecentlyRead(missing int64, of []occupant) []occupant {
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
	// Occupants that turn out not to be needed stay, the most recently read first.
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

// mayDisplaceOthers reports whether a replica may displace others now: its dataset asks for that, and no node
// has had room for the replica for a while. A replica that was itself displaced may displace others only while
// a pod wants it, so that two datasets do not displace each other in turns.
func (p *planner) mayDisplaceOthers(r *Replica) bool {
	if !p.Source.Displaces || r.Claim == nil || isDeleting(r.Claim) || !isPending(r.Claim) || r.Pod == nil || r.Pod.DeletionTimestamp != nil {
		return false
	}
	if r.Claim.Annotations[annotationWasDisplaced] != "" && len(p.Consumers) == 0 {
		return false
	}
	return kubeobject.PodNotScheduledFor(r.Pod, corev1.PodReasonUnschedulable) &&
		p.Now.Sub(r.Pod.CreationTimestamp.Time) >= beforeDisplacing && p.Now.Sub(timeOf(r.Claim, annotationMakesRoom)) >= betweenDisplacings
}

// timeOf parses the time in an annotation; the zero time if there is none.
func timeOf(object client.Object, key string) time.Time {
	at, err := time.Parse(time.RFC3339, object.GetAnnotations()[key])
	if err != nil {
		return time.Time{}
	}
	return at
}
