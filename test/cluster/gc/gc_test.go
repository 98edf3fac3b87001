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
	watchful = []string{"--min-age=0s", "--interval=1s", "--headroom=0"}
	// tidy is watchful, does not take half a minute to clean a disk, and trims each minute what by
	// default is trimmed weekly.
	tidy = append([]string{"--wipe-rate=1Gi", "--trim-interval=1m"}, watchful...)
	// greedy evicts everything that may be evicted immediately.
	greedy = []string{"--min-age=0s", "--interval=1s", "--high-threshold-percent=1", "--low-threshold-percent=0", "--wipe-rate=300Mi"}
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
	d.then(name, args, func(t *testing.T) { inParallel(t, parts) })
}

func inParallel(t *testing.T, parts map[string]func(*testing.T)) {
	for name, part := range parts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part(t)
		})
	}
}

// inOrder returns a part that runs others one after the other, until one fails.
func inOrder(parts ...subtest) func(*testing.T) {
	return func(t *testing.T) {
		for _, p := range parts {
			if !t.Run(p.name, p.run) {
				return
			}
		}
	}
}

type subtest struct {
	name string
	run  func(*testing.T)
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

// TestNodeDaemon tests ordinary operation, and volumes that somebody holds or removes. It has its own
// node, and so has TestNodeDaemonWithFaults, which runs in parallel.
func TestNodeDaemon(t *testing.T) {
	t.Parallel()
	d := startTest(t, calm...)
	// Each in its own group, except for those in the wide one.
	parts := map[string]func(*testing.T){
		"undeleted":                        d.testUndeleted,
		"adopted":                          d.testAdopted,
		"plugin":                           d.testPlugin,
		"removed at once":                  d.testRemovedAtOnce,
		"retained":                         d.testRetained,
		"PersistentVolume deleted by hand": d.testDeletedByHand,
		"copied":                           d.testCopied,
	}
	for layout, c := range layoutCases {
		parts[layout] = func(t *testing.T) { d.testLayout(t, layout, c) }
	}
	d.then("volumes", calm, func(t *testing.T) {
		t.Run("pressure", d.testPressure) // it begins first, as it waits the longest
		inParallel(t, parts)
	})
	d.then("report", calm, d.testReport)
	d.then("IO limits", idle, d.testIOLimits)
	d.together("beside disks", tidy, map[string]func(*testing.T){
		"disks": inOrder(
			subtest{"discovered", d.testDiscovered}, // it leaves the disks blank
			subtest{"declared groups", d.testDeclaredGroups},
			subtest{"declared volumes", d.testDeclaredVolumes},
		),
		"released":         d.testReleased, // it needs few new volumes at a time, and no copies, as volumes are created ahead only then
		"trimmed":          d.testTrimmed,
		"in use elsewhere": d.testInUseElsewhere,
		"removed by hand":  d.testRemovedByHand,
	})
	d.then("control group", tidy, d.testControlGroup)
	d.end()
}

// TestNodeDaemonWithFaults kills, stops and restarts the daemon, the API server and kubelet.
func TestNodeDaemonWithFaults(t *testing.T) {
	t.Parallel()
	d := startTest(t, greedy...)
	d.then("deleted at every moment", greedy, func(t *testing.T) { d.testDeletedAtEveryMoment(t, d.strangers) })
	d.then("killed again and again", greedy, func(t *testing.T) { d.testKilledAgainAndAgain(t, d.strangers) })
	d.then("API server without memory", greedy, func(t *testing.T) { d.testEmptyList(t, d.strangers) })
	d.then("pod deleted by force", watchful, d.testDeletedByForce)
	d.then("API server away", watchful, d.testServerAway) // last, as clients wait before they try again
	d.end()
}
