//go:build cluster

package gc_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain lets tests wait side by side that have little to do themselves.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// What the daemon is told beside its defaults, in the order in which the tests
// need it. Nothing waits for its age; what goes goes because of room alone.
var (
	// calm: no threshold is ever reached.
	calm = []string{"--min-age=0s", "--high-threshold-percent=100"}
	// watchful: the shipped thresholds, and looks when nobody calls.
	watchful = []string{"--min-age=0s", "--interval=2s"}
	// greedy: everything that may go goes at once.
	greedy = []string{"--min-age=0s", "--interval=2s", "--high-threshold-percent=1", "--low-threshold-percent=0", "--wipe-rate=300Mi"}
	// reckless: and orphans, too.
	reckless = append([]string{"--evict-orphans", "--orphan-age=0s", "--orphan-share-percent=100"}, greedy...)
)

// TestNodeDaemon shares one cluster between its parts.
func TestNodeDaemon(t *testing.T) {
	b := start(t, calm...)
	strangers := b.strangers(t)
	parts := func(name string, parts map[string]func(*testing.T)) bool {
		return t.Run(name, func(t *testing.T) {
			for name, part := range parts {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					part(t)
				})
			}
		})
	}
	ok := parts("one by one", map[string]func(*testing.T){
		"released":                         b.testReleased,
		"undeleted":                        b.testUndeleted,
		"removed at once":                  b.testRemovedAtOnce,
		"retained":                         b.testRetained,
		"PersistentVolume deleted by hand": b.testDeletedByHand,
	})
	ok = ok && t.Run("pressure", b.testPressure)
	ok = ok && inFull("layouts", func() bool { return t.Run("layouts", b.testLayouts) })
	ok = ok && inFull("IO limits", func() bool { return t.Run("IO limits", b.testIOLimits) })
	ok = ok && inFull("copied", func() bool { return t.Run("copied", b.testCopied) })
	if ok {
		b.configure(t, watchful...)
		ok = t.Run("in use elsewhere", b.testInUseElsewhere) &&
			t.Run("pod deleted by force", b.testDeletedByForce) &&
			t.Run("API server away", b.testServerAway)
	}
	if ok {
		b.configure(t, greedy...)
		ok = t.Run("deleted at every moment", func(t *testing.T) { b.testDeletedAtEveryMoment(t, strangers) }) &&
			inFull("killed again and again", func() bool {
				return t.Run("killed again and again", func(t *testing.T) { b.testKilledAgainAndAgain(t, strangers) })
			})
	}
	if ok {
		t.Run("API server without memory", func(t *testing.T) { b.testEmptyList(t, strangers) })
	}
	b.untouched(t, strangers)
	b.say(t, "the end")
}

// inFull runs a part in `make campaign` only: the engine's own tests go over layouts
// and copies, those of internal/gc over limits, and the soak kills daemons, in
// `make test`.
func inFull(name string, part func() bool) bool {
	if os.Getenv("FLEXLVM_CAMPAIGN") == "" {
		fmt.Printf("gc: %q is left to make campaign\n", name)
		return true
	}
	return part()
}
