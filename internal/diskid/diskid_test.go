package diskid

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"naa.1", "naa.1", true},
		{"naa.1", "naa.1-part2", true},
		{"naa.1-part1", "naa.1-part2", false},
		{"naa.1-part1", "naa.1-part11", false},
		{"naa.1", "naa.12", false},
		{"naa.1", "naa.1-parts", false},
		{"fs-u", "fs-u:/a", true},
		{"fs-u:/a", "fs-u:/a/b", true},
		{"fs-u:/a", "fs-u:/ab", false},
		{"fs-u", "fs-v", false},
		{"", "", false},
		{"", "-part1", false},
	} {
		require.Equal(t, c.want, Overlap(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, Overlap(c.b, c.a), "%s %s", c.b, c.a)
	}
}
