//go:build s3

package suite

import (
	"crypto/md5"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/test/s3"
)

// inFull reports whether this is a campaign, which may take long.
func inFull() bool { return os.Getenv("FLEXLVM_CAMPAIGN") != "" }

// leastKills is the least number of kills, however slow the machine is.
const leastKills = 5

// goesOn reports whether a test with that many kills since began is to kill once more.
func goesOn(kills int, began time.Time) bool {
	if inFull() {
		return time.Since(began) < killingTime()
	}
	return kills < leastKills || kills < 25 && time.Since(began) < killingTime()
}

// killingTime returns how long a test goes on killing.
func killingTime() time.Duration {
	if inFull() {
		return 3 * time.Minute
	}
	return 6 * time.Second
}

// states returns the states between which a source changes. Any two of them share files that the third
// has with other content of the same size or does not have.
func states() []tree {
	all := []tree{{}, {}, {}}
	for i, state := range all {
		state["state"] = strconv.Itoa(i)
		for n := range 10 {
			state[fmt.Sprintf("kept/%d", n)] = noise(uint64(300+n), 5000+n)
		}
		for n := range 16 {
			for other := range all { // the two states other than this one have the same content
				seed := 400 + n + 200*other
				if other == i {
					seed += 100
				}
				state[fmt.Sprintf("%d/%02d", other, n)] = noise(uint64(seed), 5000)
			}
		}
		for n := range 6 {
			for other := range all { // the only state without the file
				if other != i {
					state[fmt.Sprintf("without/%d/%d/file", other, n)] = noise(uint64(1000+10*other+n), 3000)
				}
			}
		}
	}
	all[0]["turns/file"], all[1]["turns"], all[2]["turns/file"] = "in a directory", "a file", "in a directory"
	return all
}

// A killing is a test that kills loaders of versions of a source with several states.
type killing struct {
	*bed
	states  []tree
	state   int // of the source
	current int // the current version
	// readers are the readers of the current and of earlier versions.
	readers map[int]*reader
	// usual is how long a loader takes without a kill.
	usual             time.Duration
	kills, made, same int
	believed          int // checked files of unfinished versions
}

// A reader has all files of a version open.
type reader struct {
	want  tree
	files map[string]*os.File
}

func (k *killing) open(number int, want tree) *reader {
	r := &reader{want: want, files: map[string]*os.File{}}
	for name := range want {
		file, err := os.Open(filepath.Join(k.version(number), name))
		require.NoError(k.t, err)
		k.t.Cleanup(func() { _ = file.Close() }) // already closed if retired
		r.files[name] = file
	}
	return r
}

func (r *reader) requireSame(t *testing.T, when string) {
	t.Helper()
	for name, file := range r.files {
		content := make([]byte, len(r.want[name])+1)
		n, _ := file.ReadAt(content, 0) // the error is io.EOF at most
		require.True(t, r.want[name] == string(content[:n]), "%s of a version that is read has changed %s", name, when)
	}
}

// become changes the source to a state.
func (k *killing) become(state int) {
	k.t.Helper()
	was, is, changed := k.states[k.state], k.states[state], tree{}
	for name := range was {
		if _, there := is[name]; !there {
			require.NoError(k.t, server.Remove(k.ctx, k.bucket, name))
		}
	}
	for name, content := range is {
		if was[name] != content {
			changed[name] = content
		}
	}
	k.put(changed)
	k.state = state
}

// next returns another state for the source, seldom that of the current version.
func (k *killing) next() int {
	for {
		next := rand.N(len(k.states))
		is := strconv.Itoa(next) == k.readers[k.current].want["state"]
		if next != k.state && (!is || rand.N(3) == 0) {
			return next
		}
	}
}

// round runs four loaders. The first is killed at any moment, the second soon after it requested its
// second listing, when all that it fetched is in the manifest, and the third soon after it began to
// link. The last loads the source's state before the third, and is mostly not killed.
func (k *killing) round() {
	k.t.Helper()
	k.become(k.next())
	k.loadAndKill(k.usual, nil)
	k.become(k.next())
	k.loadAndKill(k.usual/20, k.asksTwice())
	before := k.state
	k.become(k.next())
	k.loadAndKill(10*time.Millisecond, k.links(before))
	k.become(before)
	k.loadAndKill([]time.Duration{k.usual, longest, longest}[rand.N(3)], nil)
	for number := range k.readers {
		if number < k.current && rand.N(3) > 0 {
			k.retire(number)
		}
	}
}

// asksTwice returns a function that waits for the next loader's second listing.
func (k *killing) asksTwice() func(ended <-chan struct{}) {
	asked := make(chan struct{})
	k.proxy.Inject(s3.Fault{Method: "GET", Query: "list-type", Skip: 1, Times: 1, Before: func() { close(asked) }})
	return func(ended <-chan struct{}) {
		select {
		case <-asked:
		case <-ended:
		}
	}
}

// links returns a function that waits until the next version has linked a file of the current one whose
// content differs in the source's state before. It returns nil if there is no such file.
func (k *killing) links(before int) func(ended <-chan struct{}) {
	base, next := k.version(k.current), k.version(k.current+1)
	for name, content := range k.readers[k.current].want {
		if other := k.states[before][name]; other == "" || other == content || k.states[k.state][name] != content {
			continue
		}
		return func(ended <-chan struct{}) {
			for {
				old, errOld := os.Stat(filepath.Join(base, name))
				now, errNow := os.Stat(filepath.Join(next, name))
				if errOld == nil && errNow == nil && os.SameFile(old, now) {
					return
				}
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}
	}
	return nil
}

func (k *killing) load() *running {
	return k.start(k.url(""), "--versions", k.dest, "--sync", "--index", "--progress", "none")
}

// loadAndKill starts a loader and kills it within that time after its start, or after wait has
// returned.
func (k *killing) loadAndKill(within time.Duration, wait func(ended <-chan struct{})) {
	k.t.Helper()
	ended := make(chan struct{})
	began, r := time.Now(), k.load()
	go func() {
		if wait != nil {
			wait(ended)
		}
		select {
		case <-time.After(rand.N(within)):
			_ = r.cmd.Process.Kill() // it may have ended already
		case <-ended:
		}
	}()
	o := r.wait()
	close(ended)
	require.Contains(k.t, []int{-1, 0}, o.code, o.stderr)
	if o.code == 0 {
		if k.currentVersion() != k.current {
			k.usual = time.Since(began)
		}
		k.requireCurrent("after a run that was not killed")
	} else {
		k.kills++
	}
	k.look()
}

// look checks the versions after a loader's end.
func (k *killing) look() {
	k.t.Helper()
	when := fmt.Sprintf("after kill %d, with the source in state %d", k.kills, k.state)
	for _, r := range k.readers {
		r.requireSame(k.t, when)
	}
	number := k.currentVersion()
	k.requireTrue(number+1, when)
	if number == k.current {
		k.requireVersion(number, k.readers[number].want, when)
		k.same++
		return
	}
	require.Equal(k.t, k.current+1, number, when)
	k.requireVersion(number, k.states[k.state], when)
	k.readers[number] = k.open(number, k.states[k.state])
	k.current = number
	k.made++
}

// requireTrue checks the manifest of an unfinished version, because the next loader trusts an entry
// whose size and time agree with the file.
func (k *killing) requireTrue(number int, when string) {
	k.t.Helper()
	last := map[string]entry{}
	lines(k.t, filepath.Join(k.version(number), ".flexlvm/manifest.jsonl"), func(e entry) { last[e.Path] = e })
	for name, e := range last {
		info, err := os.Stat(filepath.Join(k.version(number), name))
		if e.Deleted || err != nil || info.Size() != e.Bytes || info.ModTime().After(e.FetchedAt) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(k.version(number), name))
		require.NoError(k.t, err)
		require.Equal(k.t, e.ETag, fmt.Sprintf("%x", md5.Sum(content)), "%s of version %d, which was begun, %s", name, number, when)
		k.believed++
	}
}

// requireCurrent checks that the current version equals the source.
func (k *killing) requireCurrent(when string) {
	k.t.Helper()
	k.requireVersion(k.currentVersion(), k.states[k.state], when)
}

// retire does what the node does when a version has no readers left.
func (k *killing) retire(number int) {
	k.t.Helper()
	for _, file := range k.readers[number].files {
		require.NoError(k.t, file.Close())
	}
	delete(k.readers, number)
	require.NoError(k.t, os.Rename(k.version(number), k.version(number)+protocol.UnreadSuffix))
}

// Loaders that are killed at any moment leave a complete current version and change nothing in a
// version that is read. In the end nothing is left of unfinished versions.
func TestVersionsKilledAtAnyMoment(t *testing.T) {
	k := &killing{bed: newBedFor(t, longest+killingTime()), states: states(), current: 1, readers: map[int]*reader{}}
	k.put(k.states[0])
	began := time.Now()
	o := k.load().wait()
	require.Zero(t, o.code, o.stderr)
	k.usual = time.Since(began)
	k.requireCurrent("at first")
	k.readers[1] = k.open(1, k.states[0])

	for began := time.Now(); goesOn(k.kills, began) || k.believed == 0 || k.made == 0; {
		k.round()
	}
	t.Logf("%d kills; another version was current after %d loaders, and after %d the one before", k.kills, k.made, k.same)

	k.proxy.Inject()
	k.become((k.state + 1) % len(k.states))
	o = k.load().wait()
	require.Zero(t, o.code, o.stderr)
	k.look()
	k.requireCurrent("after the last run")
	require.Positive(t, k.made)
	for number := range k.readers {
		if number < k.current {
			k.retire(number)
		}
	}
	o = k.load().wait() // it removes the retired versions
	require.Zero(t, o.code, o.stderr)
	k.look()
	k.requireNothingElse()
}

// requireNothingElse checks that only the current version exists.
func (k *killing) requireNothingElse() {
	k.t.Helper()
	version := path.Join(protocol.VersionsDir, strconv.Itoa(k.current))
	want := map[string]bool{".": true, protocol.CurrentFile: true, path.Join(version, ".flexlvm/tmp"): true}
	for name := range k.states[k.state] {
		want[path.Join(version, name)] = true
	}
	for _, name := range []string{"complete", "lock", "manifest.jsonl"} {
		want[path.Join(version, ".flexlvm", name)] = true
	}
	for name := range maps.Clone(want) {
		for ; name != "."; name = path.Dir(name) {
			want[name] = true
		}
	}
	found := map[string]bool{}
	require.NoError(k.t, fs.WalkDir(os.DirFS(k.dest), ".", func(name string, _ fs.DirEntry, err error) error {
		found[name] = true
		return err
	}))
	require.ElementsMatch(k.t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(found)))
}
