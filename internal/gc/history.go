package gc

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

// keptEvictions is how many the NodeStorage shows.
const keptEvictions = 20

// history is the last evictions, the newest first. It may be used from several
// goroutines.
type history struct {
	mu      sync.Mutex
	begun   bool
	list    []flexlvmv1.Eviction
	orphans []time.Time
}

// begin takes over what an earlier process has left in the NodeStorage. It counts
// once.
func (h *history) begin(earlier []flexlvmv1.Eviction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun {
		return
	}
	h.begun = true
	h.list = append(h.list, earlier...)
	for _, e := range earlier {
		if e.Reason == string(ReasonOrphan) {
			h.orphans = append(h.orphans, e.Time.Time)
		}
	}
}

func (h *history) hasBegun() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}

func (h *history) add(now time.Time, e Eviction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Reason == ReasonOrphan {
		h.orphans = append(h.orphans, now)
	}
	h.list = slices.Insert(h.list, 0, flexlvmv1.Eviction{
		Time: second(now), Pool: string(e.Volume.Group), Name: string(e.Volume.Name),
		Size: quantity(e.Volume.Size), LastUsed: second(e.Volume.LastUsed),
		Reason: string(e.Reason), Message: clip(e.Message, mostMessage),
	})
	h.list = h.list[:min(len(h.list), keptEvictions)]
}

func (h *history) evictions() []flexlvmv1.Eviction {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list[:min(len(h.list), keptEvictions)])
}

// orphansSince counts the orphans that were evicted after then.
func (h *history) orphansSince(then time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.orphans = slices.DeleteFunc(h.orphans, func(at time.Time) bool { return !at.After(then) })
	return len(h.orphans)
}

// second is a time as the API keeps it: a finer one would differ from what was
// read back.
func second(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func quantity[T ~int64](bytes T) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}
