//go:build vm

package node

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func itoa(n int) string { return strconv.Itoa(n) }

// grown is more than the smallest device that XFS can have, so that growing to it takes every step.
const grown = 512 * volume.MiB

// untilAlive repeats a call, killed after its first step, then after its second, and so on, each time from a
// fresh start, until the call ends before it is killed. check runs after each kill and a repetition of the
// call.
func untilAlive(t *testing.T, c call, start func(), check func(step int)) {
	t.Helper()
	for die := 1; ; die++ {
		require.Less(t, die, 30)
		start()
		c.Die = die
		if !c.run(t) {
			require.Greater(t, die, 1, "the call had no step at all")
			return
		}
		c.Die = 0
		require.False(t, c.run(t), "the same call again, after death %d", die)
		check(die)
	}
}

func TestFirstMountKilledAfterEveryStep(t *testing.T) {
	campaign(t, testFirstMountKilledAfterEveryStep)
}

func testFirstMountKilledAfterEveryStep(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	target := m.target("a")
	deaths := 0
	untilAlive(t, call{Dir: m.dir, Verb: "mount", Spec: s, Target: target}, func() {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
	}, func(step int) {
		deaths++
		require.True(t, isMounted(target))
		require.Equal(t, []string{"data"}, lvs(), "one volume after death %d", step)
		size, used, _ := df(t, target)
		require.Equal(t, s.Size, size)
		require.Zero(t, used)
		require.Equal(t, volume.Ready, tagsOf(t, s.Name).State)
		require.Equal(t, s.Size, fill(t, target+"/data"))
	})
	require.Equal(t, 10, deaths, "lvcreate, mkfs; attach, set project, grow, set quota; write record, tag ready, record ready; move mount")
}

func TestExpandKilledAfterEveryStep(t *testing.T) { campaign(t, testExpandKilledAfterEveryStep) }

func testExpandKilledAfterEveryStep(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	target := m.target("a")
	untilAlive(t, call{Dir: m.dir, Verb: "expand", Spec: s, Size: grown}, func() {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		m.mount(s, "a")
		require.NoError(t, os.WriteFile(target+"/f", []byte("kept"), 0o600))
	}, func(int) {
		require.FileExists(t, target+"/f")
		size, _, _ := df(t, target)
		require.Equal(t, grown, size)
		require.Equal(t, grown, tagsOf(t, s.Name).Size)
		require.NoError(t, os.Remove(target+"/f"))
		require.Equal(t, grown, allocate(t, target+"/data"))
	})
}

// A growth that was killed is also completed by the next mount, or has changed nothing.
func TestMountAfterExpandKilledAfterEveryStep(t *testing.T) {
	campaign(t, testMountAfterExpandKilledAfterEveryStep)
}

func testMountAfterExpandKilledAfterEveryStep(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	for die := 1; ; die++ {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		target := m.mount(s, "a")
		c := call{Dir: m.dir, Verb: "expand", Spec: s, Size: grown, Die: die}
		if !c.run(t) {
			require.Greater(t, die, 3)
			return
		}
		m.unmount(target)
		m.mount(s, "a")
		size, _, _ := df(t, target)
		require.Contains(t, []volume.Bytes{s.Size, grown}, size)
		require.Equal(t, size, allocate(t, target+"/data"), "whatever df shows can be had")
	}
}

func TestRemovalKilledAfterEveryStep(t *testing.T) { campaign(t, testRemovalKilledAfterEveryStep) }

func testRemovalKilledAfterEveryStep(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	untilAlive(t, call{Dir: m.dir, Verb: "remove", Spec: s}, func() {
		require.NoError(t, m.records.remove(s.Group, s.Name))
		m.unmount(m.mount(s, "a"))
		require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
	}, func(int) {
		require.Empty(t, lvs())
		require.Equal(t, []volume.Name{s.Name}, m.recordedNames(s.Group), "its tombstone")
	})
}

// Between a killed removal and its repetition, a mount is refused or finds nothing of the old volume; it
// never gets a part of it.
func TestMountAfterRemovalKilledAfterEveryStep(t *testing.T) {
	campaign(t, testMountAfterRemovalKilledAfterEveryStep)
}

func testMountAfterRemovalKilledAfterEveryStep(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	target := m.target("a")
	for die := 1; ; die++ {
		m.mount(s, "a")
		require.NoError(t, os.WriteFile(target+"/old", nil, 0o600))
		m.unmount(target)
		require.NoError(t, m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}))
		died := call{Dir: m.dir, Verb: "remove", Spec: s, Die: die}.run(t)
		if err := m.tryMount(s, target); err == nil {
			require.NoFileExists(t, target+"/old")
			m.unmount(target)
		} else {
			require.ErrorIs(t, err, ErrRefused)
		}
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		if !died {
			require.Greater(t, die, 3)
			return
		}
	}
}

// Killed at any time, not only after steps, including in the middle of LVM and mkfs.
func TestFirstMountKilledAnywhere(t *testing.T) { campaign(t, testFirstMountKilledAnywhere) }

func testFirstMountKilledAnywhere(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	target := m.target("a")
	start := time.Now()
	require.False(t, call{Dir: m.dir, Verb: "mount", Spec: s, Target: target}.run(t))
	whole := time.Since(start)
	killed := 0
	for range 12 {
		m.clear(s.Name)
		require.NoError(t, m.records.remove(s.Group, s.Name))
		c := call{Dir: m.dir, Verb: "mount", Spec: s, Target: target}
		if c.runFor(t, time.Duration(rand.Int63n(int64(whole)))) {
			killed++
		}
		// kubelet retries until it succeeds; a program of the killed call may still run for a moment.
		require.Eventually(t, func() bool { return m.tryMount(s, target) == nil }, 2*time.Minute, 50*time.Millisecond)
		require.Equal(t, []string{"data"}, lvs())
		require.Equal(t, s.Size, fill(t, target+"/data"))
		time.Sleep(100 * time.Millisecond) // time for such a program to do harm
		m.unmount(target)
		m.mount(s, "a")
		st, err := os.Stat(target + "/data")
		require.NoError(t, err)
		require.EqualValues(t, s.Size, st.Size())
	}
	t.Logf("killed %d of 12 calls within %s", killed, whole)
	require.Positive(t, killed)
}

// atOnce makes all calls at the same time, each in its own process, as kubelet does.
func atOnce(t *testing.T, calls []call) {
	t.Helper()
	failures := make(chan error, len(calls))
	var wg sync.WaitGroup
	for _, c := range calls {
		cmd := c.command(t)
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				failures <- fmt.Errorf("%s onto %s: %w: %s", c.Spec.Name, c.Target, err, out)
			}
		})
	}
	wg.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err)
	}
}

func TestTwentyVolumesAtOnce(t *testing.T) { campaign(t, testTwentyVolumesAtOnce) }

func testTwentyVolumesAtOnce(t *testing.T, m *machine) {
	// A call waits for LVM's lock no longer than kubelet waits for the call, and on a virtual node LVM takes
	// seconds for a volume with copies.
	n := 20
	if m.shape.Layout != volume.Linear {
		n = 8
	}
	calls := make([]call, n)
	for i := range calls {
		s := m.volume(fmt.Sprintf("v%d", i), 16*volume.MiB)
		calls[i] = call{Dir: m.dir, Verb: "mount", Spec: s, Target: m.target(string(s.Name))}
	}
	atOnce(t, calls)
	require.Len(t, lvs(), n)
	for _, c := range calls {
		size, _, _ := df(t, c.Target)
		require.Equal(t, 16*volume.MiB, size)
		m.unmount(c.Target)
	}
}

func TestOneVolumeTenTimesAtOnce(t *testing.T) { campaign(t, testOneVolumeTenTimesAtOnce) }

func testOneVolumeTenTimesAtOnce(t *testing.T, m *machine) {
	s := m.volume("data", 64*volume.MiB)
	calls := make([]call, 10)
	for i := range calls {
		calls[i] = call{Dir: m.dir, Verb: "mount", Spec: s, Target: m.target(itoa(i))}
	}
	atOnce(t, calls)
	require.Equal(t, []string{"data"}, lvs())
	require.NoError(t, os.WriteFile(calls[0].Target+"/f", nil, 0o600))
	for _, c := range calls {
		require.FileExists(t, c.Target+"/f")
		m.unmount(c.Target)
	}
}

// outcomes are the outcomes of calls that race.
type outcomes struct {
	mu         sync.Mutex
	succeeded  map[string]int // calls, by verb
	unexpected []error
}

// note records a call's outcome. A call may succeed or fail with one of the expected errors.
func (o *outcomes) note(verb string, err error, expected ...error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.succeeded[verb]++
		return
	}
	if !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) }) {
		o.unexpected = append(o.unexpected, fmt.Errorf("%s: %w", verb, err))
	}
}

// missing returns the verbs of which no call has succeeded.
func (o *outcomes) missing(verbs ...string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(verbs, func(v string) bool { return o.succeeded[v] > 0 })
}

// Several callers mount, unmount, grow, release and remove one volume at the same time: every call ends, with
// success or a refusal that has a reason, each verb succeeds now and then, and in the end the volume is intact
// or removed.
func TestRaceOfEverything(t *testing.T) { campaign(t, testRaceOfEverything) }

func testRaceOfEverything(t *testing.T, m *machine) {
	s := m.volume("data", 16*volume.MiB)
	s.Kind = volume.Dataset          // the name of a dataset may be used again
	m.roundLockTimeout = time.Minute // calls of a busy machine hold the lock for seconds
	lasts := 4 * time.Second
	if inFull() {
		lasts = 10 * time.Second
	}
	m.mount(s, "begin") // or the first release and removal could succeed because there is no volume
	m.unmount(m.target("begin"))
	o := &outcomes{succeeded: map[string]int{}}
	missing := func() []string { return o.missing("mount", "unmount", "release", "remove", "expand") }
	begun := time.Now()
	// Longer if a verb has not succeeded yet, because a machine may be slow.
	goesOn := func() bool {
		return time.Since(begun) < lasts || time.Since(begun) < lasts+time.Minute && len(missing()) > 0
	}
	var wg sync.WaitGroup
	for i := range 3 {
		target := m.target(itoa(i))
		wg.Go(func() {
			for goesOn() {
				o.note("mount", m.Mount(m.ctx(), s, MountRequest{Target: target, ReadOnly: i == 0}), ErrRefused)
				o.note("unmount", m.Unmount(m.ctx(), target))
				time.Sleep(100 * time.Millisecond) // kubelet waits longer, and without a pause the others hardly get the lock
			}
		})
	}
	wg.Go(func() {
		for goesOn() {
			o.note("release", m.Release(m.ctx(), refOf(s), volume.Unreferenced, volume.Disposal{Wipe: volume.WipeZero}), lvm.ErrNoVolume, ErrRefused)
			o.note("remove", m.Remove(m.ctx(), refOf(s)), ErrInUse, ErrRefused)
			time.Sleep(200 * time.Millisecond)
		}
	})
	wg.Go(func() {
		for size := s.Size; goesOn(); size += volume.MiB {
			o.note("expand", m.Expand(m.ctx(), s, size), lvm.ErrNoVolume, ErrRefused)
			time.Sleep(300 * time.Millisecond)
		}
	})
	wg.Wait()
	require.Empty(t, o.unexpected)
	require.Empty(t, missing(), "no call of these succeeded, of all: %v", o.succeeded)
	for i := range 3 {
		require.False(t, isMounted(m.target(itoa(i))))
	}
	require.LessOrEqual(t, len(lvs()), 1)
	err := m.tryMount(s, m.target("end"))
	if err != nil {
		require.ErrorIs(t, err, ErrRefused)
		require.NoError(t, m.Remove(m.ctx(), refOf(s)))
		m.mount(s, "end")
	}
	size, _, _ := df(t, m.target("end"))
	require.Equal(t, tagsOf(t, s.Name).Size, size)
}
