package volume

import "unicode/utf8"

// Clip returns text. Text of more than maxLen bytes is cut to at most that many, followed by mark,
// which shows that something is left out. No character is cut in two, because events and conditions
// must be valid UTF-8.
func Clip(text string, maxLen int, mark string) string {
	if len(text) <= maxLen {
		return text
	}
	for maxLen > 0 && !utf8.RuneStart(text[maxLen]) {
		maxLen--
	}
	return text[:maxLen] + mark
}
