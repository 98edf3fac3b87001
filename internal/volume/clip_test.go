package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClip(t *testing.T) {
	for text, want := range map[string]string{
		"":                     "",
		"four":                 "four",
		"fives":                "five…",
		"aüüb":                 "aü…", // 6 bytes, of which the fourth begins the second ü
		"a€€":                  "a€…", // 7
		"ab€":                  "ab…", // 5
		"\x80\x80\x80\x80\x80": "…",
	} {
		require.Equal(t, want, Clip(text, 4, "…"), text)
	}
}
