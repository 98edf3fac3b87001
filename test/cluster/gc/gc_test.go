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
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// inFull reports whether time does not matter.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

// What the daemon is told beside its defaults, in the order in which the tests
// need it. Nothing waits for its age; what goes goes because of room alone.
var (
	// calm: no threshold is ever reached, and nothing is kept free.
	calm = []string{"--min-age=0s", "--high-threshold-percent=100", "--headroom=0"}
	// idle: no round comes by itself either, so what happens follows from what is seen.
	idle = append([]string{"--interval=10m"}, calm...)
	// watchful: the shipped thresholds, and looks when nobody calls.
	watchful = []string{"--min-age=0s", "--interval=2s", "--headroom=0"}
	// cleaning: likewise, and does not take half a minute to clean a disk.
	cleaning = append([]string{"--wipe-rate=1Gi"}, watchful...)
	// greedy: everything that may go goes at once.
	greedy = []string{"--min-age=0s", "--interval=2s", "--high-threshold-percent=1", "--low-threshold-percent=0", "--wipe-rate=300Mi"}
	// reckless: and orphans, too.
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

// together runs parts side by side with such a daemon.
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

// then runs a part with such a daemon; it finds the node as the one before has left it.
func (d *daemonTest) then(name string, args []string, part func(*testing.T)) {
	d.ok = d.ok && d.Run(name, func(t *testing.T) {
		d.configure(t, args...)
		part(t)
	})
}

// end requires that nobody has touched the volumes of others.
func (d *daemonTest) end() {
	d.Helper()
	d.untouched(d.T, d.strangers)
	d.say(d.T, "the end")
}

// TestNodeDaemon: what happens in an ordinary life. It has a node of its own, and so has
// TestNodeDaemonWithFaults beside it.
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
	// Each in a group of its own.
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

// TestNodeDaemonWithFaults: the daemon, the API server and kubelet end and come back, and
// volumes are held that should go.
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
