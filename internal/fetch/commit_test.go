package fetch

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// What is received and has no name yet is bounded, for files that are replaced need
// their room twice meanwhile; a worker that waits for it ends with the run.
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
