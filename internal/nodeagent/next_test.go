package nodeagent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// If something waits for pods to start, the next round runs when their time is over, however long the interval is.
func TestNextAfterStarts(t *testing.T) {
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	d, err := New(Config{Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: time.Hour, Now: func() time.Time { return now }}, nil, nil, Outlets{})
	require.NoError(t, err)
	seen := observation{view: eviction.View{Now: now, StartsUntil: now.Add(20 * time.Second)}}
	require.GreaterOrEqual(t, d.next(seen), time.Hour, "nothing waits")
	seen.result.Postponed = true
	require.Equal(t, 20*time.Second, d.next(seen))
	now = now.Add(time.Minute)
	require.Equal(t, settle, d.next(seen))
}

// A daemon whose rounds time out, each after the longest wait, is not hung, whatever its interval.
func TestRoundsThatTimeOutAreNotHung(t *testing.T) {
	for _, interval := range []time.Duration{time.Second, time.Minute, 10 * time.Minute} {
		now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
		d, err := New(Config{Node: "node-1", Policy: eviction.DefaultPolicy(), Interval: interval, Now: func() time.Time { return now }}, nil, nil, Outlets{})
		require.NoError(t, err)
		now = now.Add(2*interval + maxSettle + max(4*interval, 4*time.Minute) + 30*time.Second)
		require.NoError(t, d.Healthy(nil), interval)
		now = now.Add(time.Minute)
		require.ErrorContains(t, d.Healthy(nil), "no round has ended for ")
	}
}

// One busy volume may use up a round's budget for releases, so volumes whose release has failed come last in the next
// round.
func TestWhatHasFailedIsReleasedLast(t *testing.T) {
	d := &Daemon{releaseRetries: newBackoff(time.Second, time.Minute)}
	of := func(uids ...string) (out []eviction.Verdict) {
		for _, uid := range uids {
			out = append(out, eviction.Verdict{PersistentVolume: persistentvolume.Volume{UID: types.UID(uid)}})
		}
		return out
	}
	verdicts := of("a", "b", "c", "d")
	for _, uid := range []string{"a", "a", "c"} {
		d.releaseRetries.add(uid, time.Now(), "busy")
	}
	require.Equal(t, of("b", "d", "c", "a"), d.failedLast(verdicts))
	require.Equal(t, of("a", "b", "c", "d"), verdicts)
}

// After a long round the daemon rests for as long, unless a round is requested.
func TestRestIsAsLongAsTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Daemon{wakeups: make(chan struct{}, 1)}
		rested := func(took time.Duration) time.Duration {
			began := time.Now()
			d.rest(t.Context(), took)
			return time.Since(began)
		}
		require.Equal(t, settle, rested(0))
		require.Equal(t, 3*time.Second, rested(3*time.Second))
		require.Equal(t, maxSettle, rested(time.Hour))
		go func() {
			time.Sleep(time.Second)
			notify(d.wakeups)
		}()
		require.Equal(t, time.Second, rested(3*time.Second))
		notify(d.wakeups)
		require.Equal(t, settle, rested(3*time.Second))
	})
}
