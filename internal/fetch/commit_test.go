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
	c := &committer{unpublished: semaphore.NewWeighted(unpublishedBytes), in: make(chan finished, 10)}
	half := finished{entry: Entry{Bytes: unpublishedBytes / 2}}
	c.add(t.Context(), half)
	c.add(t.Context(), half)
	require.Len(t, c.in, 2)
	ended, end := context.WithCancel(t.Context())
	end()
	c.add(ended, finished{entry: Entry{Bytes: 1}})
	require.Len(t, c.in, 2, "there is no room for another")
	c.unpublished.Release(half.weight())
	c.add(t.Context(), half)
	require.Len(t, c.in, 3)

	huge := finished{entry: Entry{Bytes: 10 * unpublishedBytes}}
	require.EqualValues(t, unpublishedBytes, huge.weight(), "it waits until it is alone, and not for ever")
}
