package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseRatio(t *testing.T) {
	for text, want := range map[string]Ratio{"1": 1000, "1.0": 1000, "1.5": 1500, "2.25": 2250, "1.001": 1001, "100": 100000} {
		got, err := ParseRatio("overprovisionRatio", text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, says := range map[string]string{
		"0": "less than 1", "0.9": "less than 1", "": "is not a ratio", "-1": "is not a ratio", "1.": "is not a ratio", ".5": "is not a ratio",
		"1.0001": "is not a ratio", "1,5": "is not a ratio", "1.-5": "is not a ratio", "01": "is not a ratio", "1e3": "is not a ratio",
		"101": "is not a ratio", "100.001": "is more than 100", "NaN": "is not a ratio",
	} {
		_, err := ParseRatio("overprovisionRatio", text)
		var field *FieldError
		require.ErrorAs(t, err, &field, text)
		require.ErrorContains(t, err, says, text)
	}
	for r, want := range map[Ratio]string{0: "1", 1000: "1", 1500: "1.5", 1050: "1.05", 2001: "2.001", 10000: "10"} {
		require.Equal(t, want, r.String())
	}
}

func TestRatioOf(t *testing.T) {
	for _, c := range []struct {
		ratio      Ratio
		size, want Bytes
	}{
		{0, GiB, GiB}, {1000, GiB, GiB}, {2000, GiB, GiB / 2}, {1500, 3 * GiB, 2 * GiB}, {3000, 10, 4}, {1500, 0, 0},
		{100000, 2 * MaxSize, 2 * MaxSize / 100}, {1001, 2 * MaxSize, 1098413214561439},
	} {
		require.Equal(t, c.want, c.ratio.Of(c.size), "%s of %d", c.ratio, c.size)
	}
}
