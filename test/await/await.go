// Package await waits in tests for what others bring about.
package await

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	often  = 200 * time.Millisecond
	seldom = 500 * time.Millisecond // looks may cost the side that is looked at
)

// Until waits at most that long for what must come about. check tells what is still
// missing, or "" when it has come about.
func Until(t *testing.T, limit time.Duration, check func() string) {
	t.Helper()
	missing := ""
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(often) {
		if missing = check(); missing == "" {
			return
		}
	}
	require.Fail(t, "it did not come about", "after %s: %s", limit, missing)
}

// Stays requires for a while that nothing is amiss; check tells what is, or "".
func Stays(t *testing.T, while time.Duration, check func() string) {
	t.Helper()
	for end := time.Now().Add(while); time.Now().Before(end); time.Sleep(seldom) {
		require.Empty(t, check())
	}
}

// Missing is what a check tells where something is not so.
func Missing(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}
