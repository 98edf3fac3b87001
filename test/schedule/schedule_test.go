package schedule

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// failing is the environment variable of the process whose tests are to fail.
const failing = "FLEXLVM_TEST_SCHEDULE_FAILS"

// three are the slots that this package's flags say.
var three *Slots

func TestMain(m *testing.M) {
	var err error
	if three, err = FromFlags(3); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// began records in which order tests begin.
type began struct {
	mu    sync.Mutex
	names []string
}

func (b *began) add(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names = append(b.names, name)
}

// The longest test begins first, and among equals the first in the source, also when the tests run again.
func TestLongestFirst(t *testing.T) {
	s := New(1)
	for range 2 {
		var b began
		t.Run("group", func(t *testing.T) {
			for i, seconds := range []int{0, 50, 0, 90, 50} {
				name := fmt.Sprintf("%d-%d", i, seconds)
				t.Run(name, func(t *testing.T) {
					s.Parallel(t, seconds)
					b.add(name)
				})
			}
		})
		require.Equal(t, []string{"3-90", "1-50", "4-50", "0-0", "2-0"}, b.names)
	}
	require.Equal(t, New(1), &Slots{free: s.free, paused: s.paused, running: s.running}, "everything is released")
}

// No more tests run than there are slots, and no fewer.
func TestSlots(t *testing.T) {
	s := New(3)
	var mu sync.Mutex
	running, most := 0, 0
	full := make(chan struct{})
	t.Run("group", func(t *testing.T) {
		for range 9 {
			t.Run("one", func(t *testing.T) {
				s.Parallel(t, 0)
				mu.Lock()
				if running++; running == 3 && most < 3 {
					close(full)
				}
				most = max(most, running)
				mu.Unlock()
				<-full
				mu.Lock()
				running--
				mu.Unlock()
			})
		}
	})
	require.Equal(t, 3, most)
}

// A test's cleanups run before another test gets its slot.
func TestCleanupsHoldTheSlot(t *testing.T) {
	s := New(1)
	var b began
	t.Run("group", func(t *testing.T) {
		for _, name := range []string{"first", "second"} {
			t.Run(name, func(t *testing.T) {
				s.Parallel(t, 0)
				b.add(name)
				t.Cleanup(func() { b.add(name + " is cleaned up") })
			})
		}
	})
	require.Equal(t, []string{"first", "first is cleaned up", "second", "second is cleaned up"}, b.names)
}

// Subtests of a parallel test wait together with the tests beside it, longest first. Tests that are paused
// until their parent's sequential part ends take no slot.
func TestSubtestsOfAParallelTest(t *testing.T) {
	s := New(1)
	var b began
	release := make(chan struct{})
	one := func(name string, seconds int, until <-chan struct{}) func(*testing.T) {
		return func(t *testing.T) {
			s.Parallel(t, seconds)
			b.add(name)
			<-until
		}
	}
	now := make(chan struct{})
	close(now)
	t.Run("group", func(t *testing.T) {
		t.Run("longest", one("longest", 90, release))
		t.Run("short", one("short", 20, release))
		t.Run("parent", func(t *testing.T) {
			s.Group(t)
			t.Run("children", func(t *testing.T) {
				t.Run("middle", one("middle", 50, release))
				t.Run("shortest", one("shortest", 0, release))
			})
		})
		t.Run("releaser", func(t *testing.T) {
			t.Parallel()
			require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiting) == 3 }, time.Minute, time.Millisecond)
			close(release)
		})
		t.Run("a sequential group", func(t *testing.T) { t.Run("alone", one("alone", 0, now)) })
	})
	require.Equal(t, []string{"alone", "longest", "middle", "short", "shortest"}, b.names)
}

func TestFromFlags(t *testing.T) {
	require.Equal(t, 3, three.free)
}

// TestFailuresRelease runs itself in another process, where two tests fail: the second gets the slot of
// the first. A test that holds a slot and has parallel subtests fails instead of waiting forever.
func TestFailuresRelease(t *testing.T) {
	if os.Getenv(failing) != "" {
		s := New(1)
		for _, name := range []string{"first", "second"} {
			t.Run(name, func(t *testing.T) { s.Parallel(t, 0); require.FailNow(t, name+" fails") })
		}
		t.Run("parent", func(t *testing.T) {
			s.Parallel(t, 0)
			t.Run("child", func(t *testing.T) { s.Parallel(t, 0) })
		})
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFailuresRelease$", "-test.v", "-test.timeout=1m", "-test.parallel=1")
	cmd.Env = append(os.Environ(), failing+"=yes")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	for _, want := range []string{"first fails", "second fails", "TestFailuresRelease/parent holds a slot while it waits for this test: it must call Group instead"} {
		require.Contains(t, string(out), want)
	}
	require.NotContains(t, string(out), "panic")
}
