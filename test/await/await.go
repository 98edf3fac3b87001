// Package await waits for conditions in tests.
package await

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Intervals between checks. They increase, because a check's work on a virtual node delays what the test waits for.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
	// A pause is this many times as long as the check before it, up to longestPause: on a slow machine, six tests
	// that run kubectl once a second would use a whole processor.
	pauseFactor  = 3
	longestPause = 5 * time.Second
)

// Until fails the test unless check returns "" within limit. Otherwise check returns what is still missing.
func Until(t *testing.T, limit time.Duration, check func() string) {
	t.Helper()
	pause := firstPause
	for end := time.Now().Add(limit); ; {
		begun := time.Now()
		missing := check()
		if missing == "" {
			return
		}
		if time.Now().After(end) {
			require.Fail(t, "it did not come about", "after %s: %s", limit, missing)
		}
		pause = min(pause*5/4, lastPause)
		time.Sleep(max(pause, min(pauseFactor*time.Since(begun), longestPause)))
	}
}

// Missing returns a check's result: "" if ok, or else the formatted message.
func Missing(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
