// Package await waits for conditions in tests.
package await

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// How often a check is made: less and less, since what a virtual node does for the
// check keeps it from what the test waits for.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = time.Second
	// A pause is this many times as long as the check before it, up to longestPause: on a slow
	// machine, six tests that ask kubectl once a second would take a whole processor.
	pauseFactor  = 3
	longestPause = 5 * time.Second
)

// Until waits at most that long for what must come about. check tells what is still
// missing, or "" when it has come about.
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

// Missing is what a check tells where something is not so.
func Missing(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
