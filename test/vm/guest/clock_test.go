//go:build guest

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// In a guest of User-Mode Linux, a program reads the clock without a system call. The result must equal
// the guest kernel's clock, also after that was set. The functions of x/sys do the system call.

// mayBeSet is the variable that allows setting the machine's clock, as in a virtual machine.
const mayBeSet = "FLEXLVM_CLOCK_MAY_BE_SET"

// exact is the resolution of the kernel's clock, rounded up.
const exact = time.Microsecond

func kernelClock(t *testing.T, clock int32) time.Duration {
	t.Helper()
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(clock, &ts))
	return time.Duration(ts.Nano())
}

// requireOneClock compares the clocks repeatedly, over many ticks.
func requireOneClock(t *testing.T) {
	t.Helper()
	asked := kernelClock(t, unix.CLOCK_MONOTONIC)
	begun := time.Now()
	told := kernelClock(t, unix.CLOCK_MONOTONIC)
	for range 5_000 {
		before := kernelClock(t, unix.CLOCK_REALTIME)
		now := time.Duration(time.Now().UnixNano())
		after := kernelClock(t, unix.CLOCK_REALTIME)
		require.GreaterOrEqual(t, now, before-exact)
		require.LessOrEqual(t, now, after+exact)

		before = kernelClock(t, unix.CLOCK_MONOTONIC)
		passed := time.Since(begun)
		after = kernelClock(t, unix.CLOCK_MONOTONIC)
		require.GreaterOrEqual(t, passed, before-told-exact)
		require.LessOrEqual(t, passed, after-asked+exact)
	}
}

// requireOneTimeOfDay checks gettimeofday, with which a shell reads the clock.
func requireOneTimeOfDay(t *testing.T) {
	t.Helper()
	before := kernelClock(t, unix.CLOCK_REALTIME)
	out, err := exec.Command("bash", "-c", "echo $EPOCHREALTIME").Output()
	require.NoError(t, err)
	after := kernelClock(t, unix.CLOCK_REALTIME)
	us, err := strconv.ParseInt(strings.Replace(strings.TrimSpace(string(out)), ".", "", 1), 10, 64)
	require.NoError(t, err)
	now := time.Duration(us) * time.Microsecond
	require.GreaterOrEqual(t, now, before-exact)
	require.LessOrEqual(t, now, after+exact)
}

func TestClock(t *testing.T) {
	require.NotEmpty(t, os.Getenv(mayBeSet), "this sets the machine's clock; run `make test-vm`, which does so in a virtual one")
	requireOneClock(t)
	requireOneTimeOfDay(t)
	for _, year := range []int{2001, 2031} {
		tv := unix.NsecToTimeval(time.Date(year, 2, 3, 0, 0, 0, 0, time.UTC).UnixNano())
		require.NoError(t, unix.Settimeofday(&tv))
		require.Equal(t, year, time.Now().UTC().Year())
		requireOneClock(t)
		requireOneTimeOfDay(t)
	}
	// The clock runs at a rate other than the host's, then at the host's again.
	for _, freq := range []int64{400 << 16, 0} {
		_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_FREQUENCY, Freq: freq})
		require.NoError(t, err)
		requireOneClock(t)
	}
}
