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
	atFirst = 100 * time.Millisecond
	atLast  = time.Second
)

// Until waits at most that long for what must come about. check tells what is still
// missing, or "" when it has come about.
func Until(t *testing.T, limit time.Duration, check func() string) {
	t.Helper()
	missing := ""
	pause := atFirst
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(pause) {
		if missing = check(); missing == "" {
			return
		}
		pause = min(pause*5/4, atLast)
	}
	require.Fail(t, "it did not come about", "after %s: %s", limit, missing)
}

// Missing is what a check tells where something is not so.
func Missing(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
