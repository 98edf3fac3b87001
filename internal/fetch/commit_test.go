package fetch

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"

	"github.com/flexlvm/flexlvm/internal/fetch/destination"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
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

// A program may create a file after its path was checked and before a received file gets its name. Then only a file that
// a run has fetched is replaced.
func TestFileThatAppearsAfterTheCheckStays(t *testing.T) {
	dir := t.TempDir()
	d, err := destination.Open(dir)
	require.NoError(t, err)
	defer d.Close()
	publish := func(temp string, state pathState) (string, error) {
		file, err := d.Create(temp, 0)
		require.NoError(t, err)
		_, err = file.WriteString("received")
		require.NoError(t, err)
		require.NoError(t, file.Close())
		c := &committer{dest: d, checkReplaceable: func(store.Object) (pathState, error) {
			return state, os.WriteFile(filepath.Join(dir, "a"), []byte("of the user"), 0o600)
		}}
		dirs := make(map[string]*os.File)
		defer closeAll(dirs)
		err = c.publishOne(finished{temp: temp, entry: Entry{Path: "a"}}, dirs)
		text, readErr := os.ReadFile(filepath.Join(dir, "a"))
		require.NoError(t, readErr)
		return string(text), err
	}
	text, err := publish("0/one", pathEmpty)
	require.ErrorIs(t, err, store.ErrInTheWay)
	require.Equal(t, "of the user", text)
	text, err = publish("0/two", pathFetched)
	require.NoError(t, err)
	require.Equal(t, "received", text)
}
