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

// A volume that was released while the clock was ahead must not be kept until that date.
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

	// A time that was seen before counts from when it was first seen. The volume has been used again since.
	again := listed()
	again[0].LastUsed = future.Add(time.Hour)
	times.Replace(now.Add(2*time.Hour), again)
	require.Equal(t, now.Add(2*time.Hour), again[0].LastUsed)
	require.Equal(t, now, again[0].Released)

	// A volume that is gone is forgotten, as everything is when the process ends.
	times.Replace(now.Add(3*time.Hour), nil)
	got := listed()
	times.Replace(now.Add(3*time.Hour), got)
	require.Equal(t, now.Add(3*time.Hour), got[1].Released)

	// If the clock is set back once more, no time is older than now, or later.
	got = listed()
	times.Replace(now, got)
	require.Equal(t, want, got)

	// Once the date is reached, the recorded time counts.
	got = listed()
	times.Replace(future.Add(time.Hour), got)
	require.Equal(t, listed(), got)
}

// If the clock was ahead when a replica's eviction was confirmed, its room must not count as coming until that date
// while its claim stays.
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
