package nfsquota

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/quota"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestAwait(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	b.pass()
	long := time.Now().Add(-time.Hour)
	for _, dir := range []string{b.dir, b.path(nfsmark.Dir)} {
		require.NoError(t, os.Chtimes(dir, long, long))
	}
	b.pass() // which writes nothing
	began := time.Now()
	b.keeper.Await(t.Context(), 1500*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(began), 1500*time.Millisecond, "nothing has changed")
	b.mark(2, volume.MiB)
	began = time.Now()
	b.keeper.Await(t.Context(), time.Minute)
	require.Less(t, time.Since(began), 30*time.Second)
}

// The files of a removed directory are counted until the server has closed and removed them, which changes
// no directory.
func TestAwaitFilesThatAreCountedForAMoment(t *testing.T) {
	b := newBed(t)
	b.make(1, volume.MiB)
	b.pass()
	age := func(by time.Duration) {
		at := time.Now().Add(-by)
		for _, dir := range []string{b.dir, b.path(nfsmark.Dir)} {
			require.NoError(t, os.Chtimes(dir, at, at))
		}
	}
	b.unmark(1)
	require.NoError(t, os.Remove(b.path(directory(1))))
	age(2 * fresh)
	b.pass()
	began := time.Now()
	b.keeper.Await(t.Context(), time.Minute)
	require.GreaterOrEqual(t, time.Since(began), countedPoll)
	require.Less(t, time.Since(began), 30*time.Second)

	age(2 * countedWindow)
	b.pass()
	began = time.Now()
	b.keeper.Await(t.Context(), 4*time.Second)
	require.GreaterOrEqual(t, time.Since(began), 4*time.Second, "it may be an archived directory")

	b.fake.dirs = nil
	age(2 * fresh)
	b.pass()
	require.Equal(t, quota.Limit{}, b.fake.limits[firstProject])
	age(2 * fresh) // the pass has written
	b.pass()
	began = time.Now()
	b.keeper.Await(t.Context(), 4*time.Second)
	require.GreaterOrEqual(t, time.Since(began), 4*time.Second, "nothing is counted any more")
}
