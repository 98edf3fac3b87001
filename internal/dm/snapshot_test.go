package dm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
)

func TestFills(t *testing.T) {
	says := func(out string) commandtest.Func {
		return func(argv ...string) (string, error) {
			require.Equal(t, "dmsetup status --noflush --target snapshot", strings.Join(argv, " "))
			return out, nil
		}
	}
	for out, want := range map[string]map[string]int{
		"No devices found\n": {},
		"":                   {},
		"flexlvm-snap--1: 0 614400 snapshot 149504/184320 592\nflexlvm-snap--2: 0 614400 snapshot 16/184320 16\n": {"flexlvm-snap--1": 81, "flexlvm-snap--2": 0},
		"flexlvm-snap--1: 0 614400 snapshot 184320/184320 592\nflexlvm-snap--2: 0 614400 snapshot Invalid\n":      {"flexlvm-snap--1": 100, "flexlvm-snap--2": 100},
		"flexlvm-snap--1: 0 614400 snapshot Merge failed\n":                                                       {},
	} {
		fills, err := Fills(t.Context(), says(out))
		require.NoError(t, err, out)
		require.Equal(t, want, fills, out)
	}
	for _, out := range []string{"x: 0 614400 snapshot a/b 1", "x: 0 614400 snapshot 1/0 1", "x: 0 614400 snapshot 3/2 1", "x: 0 614400 snapshot 3 1"} {
		_, err := Fills(t.Context(), says(out))
		require.ErrorContains(t, err, "which this release does not know", out)
	}
}
