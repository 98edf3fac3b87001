package growth

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/ledger"
)

// A key names a claim.
type key struct {
	namespace, name string
}

func keyOf(claim *corev1.PersistentVolumeClaim) key { return key{claim.Namespace, claim.Name} }

// A resizeRequest is the request of a claim to grow.
type resizeRequest struct {
	key      key
	uid      types.UID
	since    time.Time      // when the claim began to ask
	reported reportedAnswer // written by index.report
	lacks    time.Time      // when the volume's pool began to hold less than is promised in it
	// failed is the size in bytes that the node could not reach; 0 if it has not failed.
	failed int64
	// until is when the node may be asked for that size, or a larger one, again.
	until time.Time
	// pause is the current backoff.
	pause time.Duration
}

// fail records that the node could not grow the volume to a size. The first retry is soon, because
// kubelet or a driver may just have been unavailable; later retries back off exponentially.
func (r *resizeRequest) fail(size int64, now time.Time) {
	if size < r.failed {
		r.pause = 0
	}
	r.pause = min(max(2*r.pause, regrowFirst), regrowAfter)
	r.failed, r.until = size, now.Add(r.pause)
}

// A reportedAnswer is the last answer that was reported to a claim.
type reportedAnswer struct {
	outcome ledger.Outcome
	to      int64 // bytes
	at      time.Time
}

// An index holds the claims that ask to grow, by the label of their volumes' node. It can be rebuilt
// after a restart.
type index struct {
	mu     sync.Mutex
	byNode map[string]map[key]*resizeRequest
	node   map[key]string
}

func newIndex() *index {
	return &index{byNode: map[string]map[key]*resizeRequest{}, node: map[key]string{}}
}

// requestOf returns the request of a claim, including the answer that an earlier process reported.
func requestOf(claim *corev1.PersistentVolumeClaim, now time.Time) *resizeRequest {
	out := &resizeRequest{key: keyOf(claim), uid: claim.UID, since: askedAt(claim, now)}
	ask := asked(claim)
	c := condition(claim, corev1.PersistentVolumeClaimControllerResizeError)
	if c != nil && slices.Contains(strings.FieldsFunc(c.Message, func(r rune) bool { return r == ' ' || r == ':' }), ask.String()) {
		out.reported = reportedAnswer{outcome: ledger.Outcome(c.Reason), to: ask.Value()}
	}
	return out
}

// add records that a claim asks to grow.
func (x *index) add(label string, r *resizeRequest) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, there := x.node[r.key]; there {
		if before == label && x.byNode[label][r.key].uid == r.uid {
			return
		}
		x.drop(r.key)
	}
	if x.byNode[label] == nil {
		x.byNode[label] = map[key]*resizeRequest{}
	}
	x.byNode[label][r.key] = r
	x.node[r.key] = label
}

func (x *index) remove(k key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(k)
}

func (x *index) drop(k key) {
	label, there := x.node[k]
	if !there {
		return
	}
	delete(x.node, k)
	delete(x.byNode[label], k)
	if len(x.byNode[label]) == 0 {
		delete(x.byNode, label)
	}
}

// report records the answer that was reported to a claim.
func (x *index) report(r *resizeRequest, answer reportedAnswer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.reported = answer
}

// outcomes returns how many claims had which outcome reported last.
func (x *index) outcomes() map[ledger.Outcome]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[ledger.Outcome]int{}
	for _, requests := range x.byNode {
		for _, r := range requests {
			out[r.reported.outcome]++
		}
	}
	return out
}

// any reports whether a claim of the node asks to grow.
func (x *index) any(label string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byNode[label]) > 0
}

// of returns the requests of a node in the order in which they were made. Only one worker at a time processes a
// node, and only it changes the requests' other fields.
func (x *index) of(label string) []*resizeRequest {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*resizeRequest, 0, len(x.byNode[label]))
	for _, r := range x.byNode[label] {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *resizeRequest) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.key.namespace, b.key.namespace), cmp.Compare(a.key.name, b.key.name))
	})
	return out
}
