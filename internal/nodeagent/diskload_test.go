package nodeagent

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestDiskLoad(t *testing.T) {
	now, used := time.Unix(1000, 0), map[string]time.Duration{"/dev/a": time.Hour, "/dev/b": 0}
	m := newDiskLoad(func(device string) (time.Duration, error) {
		total, known := used[device]
		if !known {
			return 0, errors.New("no such device")
		}
		return total, nil
	})
	pools := []inventory.Pool{{Name: "one", Devices: []string{"/dev/a", "/dev/b"}}, {Name: "two", Devices: []string{"/dev/b", "/dev/gone"}}}
	after := func(span time.Duration, share float64) map[volume.PoolName]int {
		now = now.Add(span)
		used["/dev/a"] += time.Duration(share * float64(span))
		return m.measure(now, pools)
	}
	idle := map[volume.PoolName]int{"one": 0, "two": 0}
	require.Equal(t, idle, m.measure(now, pools), "what was before the start says nothing")
	require.Equal(t, idle, after(5*time.Second, 1), "a moment's burst")
	for range 30 {
		after(time.Minute, 1)
	}
	require.Equal(t, map[volume.PoolName]int{"one": 100, "two": 0}, after(time.Minute, 1), "as busy as the busiest device")
	half := after(time.Minute, 0.5)["one"]
	require.Greater(t, half, 50, "what is older counts too")
	for range 30 {
		after(time.Minute, 0.5)
	}
	require.Equal(t, 50, after(time.Minute, 0.5)["one"])
	for _, share := range []float64{0.48, 0.53, 0.46, 0.55, 0.47} {
		for range 10 {
			require.Equal(t, 50, after(time.Minute, share)["one"], "it is not told anew for nothing")
		}
	}
	used["/dev/a"] = 0
	require.Equal(t, 50, m.measure(now.Add(time.Minute), pools)["one"], "the counter began anew")
	require.Nil(t, newDiskLoad(nil).measure(now, pools))
}
