package fetch

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// The size of received files without a final name is bounded, because a replaced file needs its space
// twice meanwhile. A worker that waits for space ends with the run.
func TestTakeIsBounded(t *testing.T) {
	c := &committer{unnamed: semaphore.NewWeighted(unnamedBytes), in: make(chan finished, 10)}
	half := finished{entry: Entry{Bytes: unnamedBytes / 2}}
	c.take(t.Context(), half)
	c.take(t.Context(), half)
	require.Len(t, c.in, 2)
	ended, end := context.WithCancel(t.Context())
	end()
	c.take(ended, finished{entry: Entry{Bytes: 1}})
	require.Len(t, c.in, 2, "there is no room for another")
	c.unnamed.Release(half.weight())
	c.take(t.Context(), half)
	require.Len(t, c.in, 3)

	huge := finished{entry: Entry{Bytes: 10 * unnamedBytes}}
	require.EqualValues(t, unnamedBytes, huge.weight(), "it waits until it is alone, and not for ever")
}
