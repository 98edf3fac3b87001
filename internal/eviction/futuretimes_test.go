package eviction_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A clock that was ahead when a volume was released must not keep it until that day.
func TestFutureTimes(t *testing.T) {
	now := evictiontest.Now
	future := now.AddDate(73, 0, 0)
	hour := now.Add(-time.Hour)
	listed := func() []inventory.Volume {
		return []inventory.Volume{
			{UUID: "a", Created: hour, LastUsed: future, Released: future.Add(time.Minute)},
			{UUID: "b", Created: future, LastUsed: future, Released: future},
			{UUID: "c", Created: hour, LastUsed: hour, Released: now},
			{UUID: "d"},
		}
	}
	var times eviction.FutureTimes
	want := []inventory.Volume{
		{UUID: "a", Created: hour, LastUsed: now, Released: now},
		{UUID: "b", Created: now, LastUsed: now, Released: now},
		{UUID: "c", Created: hour, LastUsed: hour, Released: now},
		{UUID: "d"},
	}
	for _, later := range []time.Duration{0, time.Minute, time.Hour} {
		got := listed()
		times.Replace(now.Add(later), got)
		require.Equal(t, want, got, "first seen, %s later", later)
	}

	// What was seen before counts from when it was: it has been used again since.
	again := listed()
	again[0].LastUsed = future.Add(time.Hour)
	times.Replace(now.Add(2*time.Hour), again)
	require.Equal(t, now.Add(2*time.Hour), again[0].LastUsed)
	require.Equal(t, now, again[0].Released)

	// One that went is forgotten, and so is all when the process ends.
	times.Replace(now.Add(3*time.Hour), nil)
	got := listed()
	times.Replace(now.Add(3*time.Hour), got)
	require.Equal(t, now.Add(3*time.Hour), got[1].Released)

	// Set back once more, nothing is older than this moment, nor ahead of it.
	got = listed()
	times.Replace(now, got)
	require.Equal(t, want, got)

	// When the day has come, the time is what it says.
	got = listed()
	times.Replace(future.Add(time.Hour), got)
	require.Equal(t, listed(), got)
}

// Nor must one that was ahead when the eviction of a replica was confirmed let its room count as coming until
// that day, where its claim stays.
func TestFutureEvictable(t *testing.T) {
	future := evictiontest.Now.AddDate(73, 0, 0)
	var times eviction.FutureTimes
	shortfall := func(later time.Duration) volume.Bytes {
		s := evictiontest.New()
		s.View.Now = s.View.Now.Add(later)
		s.Replica("first", 60)
		s.PersistentVolume("promised", 65) // 39 GiB are free
		first := &s.View.PersistentVolumes[1].Replica
		first.Asked, first.Unlabelled, first.Evictable = future, future, future
		times.ReplaceEvictable(s.View.Now, s.View.PersistentVolumes)
		require.Equal(t, evictiontest.Now, first.Evictable)
		require.Equal(t, future, first.Asked, "nothing goes by it")
		return s.Plan().Pools[0].Shortfall
	}
	require.Zero(t, shortfall(0))
	require.Zero(t, shortfall(5*time.Minute))
	require.Equal(t, 26*volume.GiB, shortfall(5*time.Minute+time.Second))
}
