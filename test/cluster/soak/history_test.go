//go:build cluster

package soak_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A claim is one claim's life. The seed decides its properties before the run starts, but not the order
// of events.
type claim struct {
	name, node, class string
	size, grown       volume.Bytes  // at creation, and after its growth
	growsInUse        bool          // while its first pod runs
	blocks            int           // of 64 KiB that are written
	abandoned         time.Duration // after which it is deleted, ready or not; 0 means never

	// The history's lock guards the following fields.
	busy     bool
	now      volume.Bytes // the last requested size
	enlarged bool
	digest   string // of the written data; empty before
	blob     string // the digest of the part that was written first
	volume   string // name of the PersistentVolume, once it is known
	deleted  time.Time
}

func (c *claim) alive() bool { return c.deleted.IsZero() }

// eviction is an eviction that an event reported.
type eviction struct {
	volume, reason string
	at             time.Time
}

// history records what was done, and the results.
type history struct {
	mu       sync.Mutex
	random   *rand.Rand
	todo     []*claim // not yet created
	claims   []*claim // created
	byVolume map[string]*claim
	room     map[string]volume.Bytes // by node, for live claims
	counts   map[string]int
	events   map[string]int // of the node daemons, by reason
	evicted  map[string]eviction
	longest  map[string]longest
	wrong    []string
}

// longest is the longest time that pods of a kind took to run.
type longest struct {
	took time.Duration
	of   string
}

// newHistory returns a history. room is the space on each node for claims that live at the same time.
func newHistory(s settings, room map[string]volume.Bytes) *history {
	h := &history{
		random: rand.New(rand.NewPCG(s.seed, 1)), byVolume: map[string]*claim{}, room: room,
		counts: map[string]int{}, events: map[string]int{}, evicted: map[string]eviction{}, longest: map[string]longest{},
	}
	nodes := slices.Sorted(maps.Keys(room))
	for i := range s.claims {
		size := volume.Bytes(64+8*h.random.IntN(18)) * volume.MiB
		c := &claim{
			name: fmt.Sprintf("c%03d", i), node: nodes[h.random.IntN(len(nodes))], class: classes[h.random.IntN(len(classes))],
			size: size, now: size, grown: size + volume.Bytes(100+20*h.random.IntN(6))*volume.MiB,
			blocks: 4 + h.random.IntN(40), growsInUse: h.random.IntN(5) < 2,
		}
		if h.random.IntN(12) == 0 {
			c.abandoned = time.Duration(1 + h.random.Int64N(int64(8*time.Second)))
		}
		h.todo = append(h.todo, c)
	}
	return h
}

// most returns what the claim uses of its group before it may be enlarged.
func (c *claim) most() volume.Bytes {
	if c.growsInUse {
		return device(c.grown)
	}
	return device(c.size)
}

func device(size volume.Bytes) volume.Bytes { return volume.XFSDeviceSize(size, 0) }

// A deed is a worker's next action.
type deed int

const (
	wait deed = iota // nothing to do until other workers are done
	create
	check
	grow
	remove
	end
)

// next decides what to do. The claim is reserved for the worker until done is called.
func (h *history) next() (deed, *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.todo) == 0 {
		return end, nil
	}
	var idle, small []*claim
	for _, c := range h.claims {
		if !c.alive() || c.busy {
			continue
		}
		idle = append(idle, c)
		if !c.enlarged && device(c.grown)-device(c.now) <= h.room[c.node] {
			small = append(small, c)
		}
	}
	at := slices.IndexFunc(h.todo, func(c *claim) bool { return c.most() <= h.room[c.node] })
	roll := h.random.IntN(100)
	switch fits := at >= 0; {
	case fits && (roll < 55 || len(idle) == 0):
		c := h.todo[at]
		h.todo = slices.Delete(h.todo, at, at+1)
		h.claims = append(h.claims, c)
		h.room[c.node] -= c.most()
		c.busy = true
		return create, c
	case len(idle) == 0:
		return wait, nil
	case roll < 55, roll >= 80 && (!fits || len(idle) > 2):
		return remove, h.take(idle)
	case roll < 70 && len(small) > 0:
		c := h.take(small)
		h.room[c.node] -= device(c.grown) - device(c.now)
		c.now, c.enlarged = c.grown, true
		return grow, c
	case roll < 80:
		return check, h.take(idle)
	}
	return wait, nil
}

func (h *history) take(from []*claim) *claim {
	c := from[h.random.IntN(len(from))]
	c.busy = true
	return c
}

func (h *history) done(c *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.busy = false
	h.counts["steps"]++
}

func (h *history) steps() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts["steps"]
}

// enlarging records that a claim is to grow, for which space is reserved.
func (h *history) enlarging(c *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.now, c.enlarged = c.grown, true
}

// deleting records a claim's deletion, and must be called before it.
func (h *history) deleting(c *claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.deleted = time.Now()
	h.room[c.node] += max(device(c.now), c.most())
	h.counts["deleted"]++
}

func (h *history) count(what string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what] += n
}

func (h *history) amiss(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.amissLocked(format, args...)
}

func (h *history) amissLocked(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.wrong = append(h.wrong, text)
	fmt.Println("soak: WRONG:", text)
}

func (h *history) wrongs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.wrong)
}

func (h *history) living() []*claim {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.claims), func(c *claim) bool { return !c.alive() })
}

func (h *history) ran(kind kind, name string, took time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts["pods"]++
	mount := "first mount"
	if kind == toCheck || kind == toGrow {
		mount = "later mount"
	}
	if took > h.longest[mount].took {
		h.longest[mount] = longest{took, name}
	}
}

// sawVolume records the claim of a PersistentVolume.
func (h *history) sawVolume(pv *corev1.PersistentVolume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Namespace != namespace {
		return
	}
	for _, c := range h.claims {
		if c.name == pv.Spec.ClaimRef.Name {
			c.volume = pv.Name
			h.byVolume[pv.Name] = c
		}
	}
}

// sawEvent checks evictions: no volume may be evicted whose claim was not deleted, and no lazily
// reclaimed one before its minimum age.
func (h *history) sawEvent(e *corev1.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e.InvolvedObject.Kind != "Node" {
		return
	}
	h.events[e.Reason]++
	if e.Reason != "VolumeEvicted" {
		return
	}
	var name, reason string
	if _, err := fmt.Sscanf(e.Message, "volume "+group+"/%s was evicted (%s", &name, &reason); err != nil {
		h.amissLocked("an event cannot be understood: %v: %s", err, e.Message)
		return
	}
	reason = strings.TrimSuffix(reason, "):")
	if _, twice := h.evicted[name]; twice {
		h.counts["told twice"]++
		return
	}
	h.evicted[name] = eviction{volume: name, reason: reason, at: e.FirstTimestamp.Time}
	h.counts["evicted: "+reason]++
	c := h.byVolume[name]
	switch {
	case c == nil:
		h.amissLocked("volume %s was evicted, and no claim is known to have had it: %s", name, e.Message)
	case c.alive():
		h.amissLocked("volume %s of claim %s was evicted, and the claim was not deleted: %s", name, c.name, e.Message)
	default:
		// One second for the difference between two machines' clocks, and one because the event's time
		// has no fraction.
		after := e.FirstTimestamp.Sub(c.deleted) + 2*time.Second
		if after < 0 || c.class != immediate && after < minAge {
			h.amissLocked("volume %s was evicted %s after the deletion of claim %s: %s", name, after, c.name, e.Message)
		}
	}
}

// line returns the state in one line.
func (h *history) line() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.counts
	return fmt.Sprintf("%d made, %d grown, %d deleted, %d evictions, %d+%d kills, %d pods, %d mismatches",
		len(h.claims), n["grown"], n["deleted"], len(h.evicted), n["killed: gc"], n["killed: kubelet"], n["pods"], len(h.wrong))
}

func (h *history) report(w io.Writer, s settings, worked time.Duration, live int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	row := func(what string, value any, more ...string) {
		fmt.Fprintf(w, "  %-34s %8v  %s\n", what, value, strings.Join(more, " "))
	}
	n := h.counts
	fmt.Fprintf(w, "\nsoak: seed %d, %.0f s of work\n", s.seed, worked.Seconds())
	row("claims made", len(h.claims))
	row("  given up before they were ready", n["abandoned"])
	row("claims grown", n["grown"], fmt.Sprintf("(%d in use)", n["grown in use"]))
	row("claims deleted", n["deleted"])
	row("claims alive, each one checked", live)
	row("checksums verified", n["verified"])
	row("volumes gone", n["gone"])
	row("volumes still waiting", n["waiting"])
	row("evictions told of in events", len(h.evicted))
	for _, what := range slices.Sorted(maps.Keys(n)) {
		if reason, ok := strings.CutPrefix(what, "evicted: "); ok {
			row("  "+reason, n[what])
		}
	}
	row("removals finished after a kill", h.events["RemovalFinished"])
	row("node daemons killed", n["killed: gc"])
	row("kubelets killed", n["killed: kubelet"])
	row("pods run", n["pods"], fmt.Sprintf("(%d more ended by a kill and were repeated)", n["repeated"]))
	for _, kind := range slices.Sorted(maps.Keys(h.longest)) {
		l := h.longest[kind]
		row("longest to Running, "+kind, fmt.Sprintf("%.1f s", l.took.Seconds()), l.of)
	}
	row("mismatches", len(h.wrong))
	fmt.Fprintf(w, "  events of the node daemons: %v\n\n", h.events)
}
