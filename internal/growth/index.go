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

// A wish is the request of a claim to grow.
type wish struct {
	key   key
	uid   types.UID
	since time.Time // since when it asks
	told  news      // written by index.tell
	lacks time.Time // since when the volume's pool holds less than is promised in it
	// failed is the size in bytes that the node could not reach; 0 if it has not failed.
	failed int64
	// until is when the node may be asked for that size, or a larger one, again.
	until time.Time
	// pause is the current backoff.
	pause time.Duration
}

// fail records that the node could not grow the volume to a size. The first retry is soon, because
// kubelet or a driver may just have been unavailable; later retries back off exponentially.
func (w *wish) fail(size int64, now time.Time) {
	if size < w.failed {
		w.pause = 0
	}
	w.pause = min(max(2*w.pause, regrowFirst), regrowAfter)
	w.failed, w.until = size, now.Add(w.pause)
}

// news is the last answer that was reported to a claim.
type news struct {
	outcome ledger.Outcome
	to      int64 // bytes
	at      time.Time
}

// An index holds the claims that ask to grow, by the label of their volumes' node. It can be rebuilt
// after a restart.
type index struct {
	mu     sync.Mutex
	byNode map[string]map[key]*wish
	node   map[key]string
}

func newIndex() *index {
	return &index{byNode: map[string]map[key]*wish{}, node: map[key]string{}}
}

// wishOf returns the wish of a claim, including the answer that an earlier process reported.
func wishOf(claim *corev1.PersistentVolumeClaim, now time.Time) *wish {
	out := &wish{key: keyOf(claim), uid: claim.UID, since: askedAt(claim, now)}
	ask := asked(claim)
	c := condition(claim, corev1.PersistentVolumeClaimControllerResizeError)
	if c != nil && slices.Contains(strings.FieldsFunc(c.Message, func(r rune) bool { return r == ' ' || r == ':' }), ask.String()) {
		out.told = news{outcome: ledger.Outcome(c.Reason), to: ask.Value()}
	}
	return out
}

// add records that a claim asks to grow.
func (x *index) add(label string, w *wish) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if before, there := x.node[w.key]; there {
		if before == label && x.byNode[label][w.key].uid == w.uid {
			return
		}
		x.drop(w.key)
	}
	if x.byNode[label] == nil {
		x.byNode[label] = map[key]*wish{}
	}
	x.byNode[label][w.key] = w
	x.node[w.key] = label
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

// tell records the answer that was reported to a claim.
func (x *index) tell(w *wish, told news) {
	x.mu.Lock()
	defer x.mu.Unlock()
	w.told = told
}

// outcomes returns how many claims were last told which outcome.
func (x *index) outcomes() map[ledger.Outcome]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[ledger.Outcome]int{}
	for _, wishes := range x.byNode {
		for _, w := range wishes {
			out[w.told.outcome]++
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

// of returns the wishes of a node in the order of their requests. Only one worker at a time processes a
// node, and only it changes the wishes' other fields.
func (x *index) of(label string) []*wish {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*wish, 0, len(x.byNode[label]))
	for _, w := range x.byNode[label] {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b *wish) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.key.namespace, b.key.namespace), cmp.Compare(a.key.name, b.key.name))
	})
	return out
}
