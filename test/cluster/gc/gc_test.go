//go:build cluster

package gc_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs many tests in parallel, which mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// inFull reports whether this is a campaign, which may take long.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

// The daemon's arguments beside its defaults, in the order in which the tests need them. No volume has
// to reach an age: volumes are evicted only for space.
var (
	// calm never reaches a threshold and keeps nothing free.
	calm = []string{"--min-age=0s", "--high-threshold-percent=100", "--headroom=0"}
	// idle also runs no periodic rounds, so that every action follows from an observed event.
	idle = append([]string{"--interval=10m"}, calm...)
	// watchful has the shipped thresholds and frequent periodic rounds.
	watchful = []string{"--min-age=0s", "--interval=2s", "--headroom=0"}
	// cleaning is watchful, and does not take half a minute to clean a disk.
	cleaning = append([]string{"--wipe-rate=1Gi"}, watchful...)
	// greedy evicts everything that may be evicted immediately.
	greedy = []string{"--min-age=0s", "--interval=2s", "--high-threshold-percent=1", "--low-threshold-percent=0", "--wipe-rate=300Mi"}
	// reckless is greedy, and evicts orphans, too.
	reckless = append([]string{"--evict-orphans", "--orphan-age=0s", "--orphan-share-percent=100"}, greedy...)
)

// daemonTest is a test of the daemon on a cluster that its parts share.
type daemonTest struct {
	*testing.T
	*bed
	strangers map[string]string
	ok        bool // so far
}

func startTest(t *testing.T, args ...string) *daemonTest {
	t.Helper()
	b := start(t, args...)
	return &daemonTest{t, b, b.strangers(t), true}
}

// together runs parts in parallel with the daemon's arguments.
func (d *daemonTest) together(name string, args []string, parts map[string]func(*testing.T)) {
	d.then(name, args, func(t *testing.T) {
		for name, part := range parts {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t)
			})
		}
	})
}

// then runs a part with the daemon's arguments, on the node as the previous part has left it.
func (d *daemonTest) then(name string, args []string, part func(*testing.T)) {
	d.ok = d.ok && d.Run(name, func(t *testing.T) {
		d.configure(t, args...)
		part(t)
	})
}

// end checks that the foreign volumes are unchanged.
func (d *daemonTest) end() {
	d.Helper()
	d.untouched(d.T, d.strangers)
	d.say(d.T, "the end")
}

// TestNodeDaemon tests ordinary operation. It has its own node, and so has TestNodeDaemonWithFaults,
// which runs in parallel.
func TestNodeDaemon(t *testing.T) {
	t.Parallel()
	d := startTest(t, calm...)
	d.together("released", calm, map[string]func(*testing.T){
		"released":                         d.testReleased,
		"undeleted":                        d.testUndeleted,
		"adopted":                          d.testAdopted,
		"plugin":                           d.testPlugin,
		"removed at once":                  d.testRemovedAtOnce,
		"retained":                         d.testRetained,
		"PersistentVolume deleted by hand": d.testDeletedByHand,
	})
	// Each in its own group.
	groups := map[string]func(*testing.T){"pressure": d.testPressure, "copied": d.testCopied}
	for layout, c := range layoutCases {
		groups[layout] = func(t *testing.T) { d.testLayout(t, layout, c) }
	}
	d.together("groups", calm, groups)
	d.then("trimmed", trimming, d.testTrimmed)
	d.then("IO limits", idle, d.testIOLimits)
	d.then("discovered", cleaning, d.testDiscovered) // it leaves the disks blank
	d.then("declared groups", watchful, d.testDeclaredGroups)
	d.then("declared volumes", watchful, d.testDeclaredVolumes)
	d.then("control group", watchful, d.testControlGroup)
	d.end()
}

// TestNodeDaemonWithFaults kills and restarts the daemon, the API server and kubelet, and keeps volumes
// in use that should be removed.
func TestNodeDaemonWithFaults(t *testing.T) {
	t.Parallel()
	d := startTest(t, greedy...)
	d.then("deleted at every moment", greedy, func(t *testing.T) { d.testDeletedAtEveryMoment(t, d.strangers) })
	d.then("killed again and again", greedy, func(t *testing.T) { d.testKilledAgainAndAgain(t, d.strangers) })
	d.then("API server away", watchful, d.testServerAway)
	d.then("in use elsewhere", watchful, d.testInUseElsewhere)
	d.then("pod deleted by force", watchful, d.testDeletedByForce)
	d.then("removed by hand", watchful, d.testRemovedByHand)
	d.then("API server without memory", greedy, func(t *testing.T) { d.testEmptyList(t, d.strangers) })
	d.end()
}
