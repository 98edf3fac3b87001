// Package schedule runs parallel tests longest first, so that none of them is alone at the end. The go
// command starts parallel tests in no particular order.
package schedule

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// unlimited is the value of -test.parallel with which only Slots limit the number of parallel tests.
const unlimited = 1000

// Slots limits how many parallel tests run at the same time.
type Slots struct {
	mu   sync.Mutex
	free int
	// paused holds the tests that wait in t.Parallel for the end of their parent's sequential part, by
	// the parent. The first of them that continues shows that all of them do.
	paused  map[string][]*entry
	waiting []*entry // for a slot
	running map[string]bool
}

type entry struct {
	name    string
	seconds int
	start   chan struct{} // closed when the test has a slot
}

// New returns n slots.
func New(n int) *Slots {
	return &Slots{free: n, paused: map[string][]*entry{}, running: map[string]bool{}}
}

// FromFlags parses the flags and returns as many slots as -parallel says, whose default is usual, or the
// number of processors if usual is 0. TestMain calls it before m.Run.
func FromFlags(usual int) (*Slots, error) {
	const parallel = "test.parallel"
	if usual > 0 {
		if err := flag.Set(parallel, strconv.Itoa(usual)); err != nil {
			return nil, err
		}
	}
	flag.Parse()
	text := flag.Lookup(parallel).Value.String()
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return nil, fmt.Errorf("-parallel is %q, and must be at least 1", text)
	}
	return New(n), flag.Set(parallel, strconv.Itoa(unlimited))
}

// Parallel replaces t.Parallel in a test that takes about so many seconds; 0 means few. Of all tests that
// wait for a slot, the longest gets the next one, and holds it until its last cleanup.
func (s *Slots) Parallel(t *testing.T, seconds int) {
	t.Helper()
	e := &entry{name: t.Name(), seconds: seconds, start: make(chan struct{})}
	if holder := s.register(e); holder != "" {
		t.Fatalf("%s holds a slot while it waits for this test: it must call Group instead", holder)
	}
	t.Parallel()
	resumed := time.Now()
	s.resume(parent(e.name))
	<-e.start
	begun := time.Now()
	t.Cleanup(func() {
		s.release(e)
		// The duration that the go command prints includes the time before. test/suite.sh reads this line.
		t.Logf("%s ran for %.2fs, after %.2fs without a slot, and states %d s", e.name, time.Since(begun).Seconds(), begun.Sub(resumed).Seconds(), seconds)
	})
}

// Group replaces t.Parallel in a test whose subtests take slots. It takes none itself, because the test waits
// for them while they wait for a slot.
func (s *Slots) Group(t *testing.T) {
	t.Helper()
	t.Parallel()
	s.resume(parent(t.Name()))
}

// register adds a test that is going to call t.Parallel, unless one above it holds a slot, whose name it
// returns.
func (s *Slots) register(e *entry) (holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for above := parent(e.name); above != ""; above = parent(above) {
		if s.running[above] {
			return above
		}
	}
	s.paused[parent(e.name)] = append(s.paused[parent(e.name)], e)
	return ""
}

// resume adds the subtests that a test paused to those that wait for a slot.
func (s *Slots) resume(test string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, s.paused[test]...)
	delete(s.paused, test)
	slices.SortStableFunc(s.waiting, func(a, b *entry) int { return cmp.Compare(b.seconds, a.seconds) })
	s.assign()
}

func (s *Slots) release(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, e.name)
	s.free++
	s.assign()
}

// assign assigns the free slots; s.mu is held.
func (s *Slots) assign() {
	for ; s.free > 0 && len(s.waiting) > 0; s.free-- {
		e := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.running[e.name] = true
		close(e.start)
	}
}

// parent returns the name of the test of which a test is a subtest, or "". A name given to t.Run may
// contain slashes, too. Such a test has other siblings here, which only affects the order.
func parent(name string) string { return name[:max(strings.LastIndex(name, "/"), 0)] }
