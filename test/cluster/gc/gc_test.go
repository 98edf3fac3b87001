//go:build cluster

package gc_test

import (
	"flag"
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

// TestNodeDaemon shares one cluster between its parts. `make test` leaves some of them
// out by name, see the Makefile.
func TestNodeDaemon(t *testing.T) {
	b := start(t, calm...)
	strangers := b.strangers(t)
	ok := t.Run("one by one", func(t *testing.T) {
		for name, part := range map[string]func(*testing.T){
			"released":                         b.testReleased,
			"undeleted":                        b.testUndeleted,
			"removed at once":                  b.testRemovedAtOnce,
			"retained":                         b.testRetained,
			"PersistentVolume deleted by hand": b.testDeletedByHand,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t)
			})
		}
	})
	// Each part finds the node as the one before has left it.
	then := func(name string, args []string, part func(*testing.T)) {
		ok = ok && t.Run(name, func(t *testing.T) {
			b.configure(t, args...)
			part(t)
		})
	}
	then("pressure", calm, b.testPressure)
	then("layouts", calm, b.testLayouts)
	then("IO limits", idle, b.testIOLimits)
	then("copied", idle, b.testCopied)
	then("in use elsewhere", watchful, b.testInUseElsewhere)
	then("pod deleted by force", watchful, b.testDeletedByForce)
	then("API server away", watchful, b.testServerAway)
	then("deleted at every moment", greedy, func(t *testing.T) { b.testDeletedAtEveryMoment(t, strangers) })
	then("killed again and again", greedy, func(t *testing.T) { b.testKilledAgainAndAgain(t, strangers) })
	then("API server without memory", greedy, func(t *testing.T) { b.testEmptyList(t, strangers) })
	b.untouched(t, strangers)
	b.say(t, "the end")
}
