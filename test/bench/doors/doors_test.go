package doors

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// In twice as many rounds as there are sides, each side is first twice, and follows each other side as
// often as it precedes it.
func TestTurns(t *testing.T) {
	sides := []*side{{name: "a"}, {name: "b"}, {name: "c"}, {name: "d"}}
	first, follows := map[string]int{}, map[string]int{}
	for i := range 2 * len(sides) {
		before := ""
		for j := range sides {
			s := turn(sides, i, j)
			if j == 0 {
				first[s.name]++
			}
			require.NotContains(t, before, s.name)
			if before != "" {
				follows[before[len(before)-1:]+s.name]++
			}
			before += s.name
		}
		require.Len(t, before, len(sides))
	}
	require.Equal(t, map[string]int{"a": 2, "b": 2, "c": 2, "d": 2}, first)
	for pair, n := range follows {
		require.Equal(t, n, follows[pair[1:]+pair[:1]], pair)
	}
}
