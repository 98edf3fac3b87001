package nodeagent

import (
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
)

// maxEvictions is how many evictions the NodeStorage shows.
const maxEvictions = 20

// history holds the last evictions, newest first. It may be used from several goroutines.
type history struct {
	orphanWindow time.Duration // how long an orphan's eviction is kept at least

	mu    sync.Mutex
	begun bool
	list  []flexlvmv1.Eviction
	// orphans are the times of the orphans' evictions that still count.
	orphans []time.Time
	// givenUp has the LVM UUIDs of the orphans that this process has given up.
	givenUp map[string]bool
	// uncounted is the time of the oldest eviction of an orphan in an earlier process's list, if that list has
	// as many of them as a NodeStorage shows (maxEvictions): there may have been more before. Otherwise it is zero.
	uncounted time.Time
	// changes counts the changes of list, and reported is that count as of the list in the NodeStorage.
	changes, reported int
}

func newHistory(orphanWindow time.Duration) *history {
	return &history{orphanWindow: orphanWindow, givenUp: map[string]bool{}}
}

// begin adds the evictions that an earlier process has recorded in the NodeStorage. Only the first call has an
// effect. Times in the future count as now.
func (h *history) begin(now time.Time, earlier []flexlvmv1.Eviction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.begun {
		return
	}
	h.begun = true
	h.list = append(h.list, earlier...)
	for _, e := range earlier {
		if e.Reason == string(eviction.ReasonOrphan) {
			h.orphans = append(h.orphans, notAfter(e.Time.Time, now))
		}
	}
	if len(h.orphans) >= maxEvictions {
		h.uncounted = h.orphans[len(h.orphans)-1]
	}
}

func notAfter(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

func (h *history) hasBegun() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}

// add records an eviction. An orphan's eviction is recorded when the orphan is given up, and only once, however
// often its removal is tried.
func (h *history) add(now time.Time, e eviction.Eviction) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.Reason == eviction.ReasonOrphan {
		if h.givenUp[e.Volume.UUID] {
			return
		}
		h.givenUp[e.Volume.UUID] = true
		h.orphans = append(h.orphans, now)
	}
	h.changes++
	h.list = slices.Insert(h.list, 0, flexlvmv1.Eviction{
		Time: second(now), Pool: string(e.Volume.Group), Name: string(e.Volume.Name),
		Size: quantity(e.Volume.Size), LastUsed: second(e.Volume.LastUsed),
		Reason: string(e.Reason), Message: clip(e.Message, maxMessage),
	})
	for len(h.list) > maxEvictions {
		h.list = slices.Delete(h.list, h.oldestDispensable(now), h.oldestDispensable(now)+1)
	}
}

// oldestDispensable returns the index of the oldest eviction that is not of an orphan that still counts, or of the
// oldest one if all are.
func (h *history) oldestDispensable(now time.Time) int {
	for i := len(h.list) - 1; i >= 0; i-- {
		if h.list[i].Reason != string(eviction.ReasonOrphan) || now.Sub(h.list[i].Time.Time) > h.orphanWindow {
			return i
		}
	}
	return len(h.list) - 1
}

// evictions returns the list, and its count of changes.
func (h *history) evictions() (list []flexlvmv1.Eviction, changes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list[:min(len(h.list), maxEvictions)]), h.changes
}

// markReported records that the NodeStorage has the list as of this count of changes. It reports whether that is
// news.
func (h *history) markReported(changes int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	news := changes > h.reported
	h.reported = max(h.reported, changes)
	return news
}

// allReported reports whether the NodeStorage has the current list.
func (h *history) allReported() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reported == h.changes
}

// orphansSince returns how many orphans were evicted after then.
func (h *history) orphansSince(then time.Time) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uncounted.After(then) {
		return math.MaxInt
	}
	h.orphans = slices.DeleteFunc(h.orphans, func(at time.Time) bool { return !at.After(then) })
	return len(h.orphans)
}

// second truncates a time to the API's precision; a finer one would differ from the time read back.
func second(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func quantity[T ~int64](bytes T) resource.Quantity {
	return *resource.NewQuantity(int64(bytes), resource.BinarySI)
}
