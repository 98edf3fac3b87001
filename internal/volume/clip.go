package volume

import "unicode/utf8"

// Clip returns text. Text of more than most bytes is cut to at most that many, followed by mark,
// which shows that something is left out. No character is cut in two, because events and conditions
// must be valid UTF-8.
func Clip(text string, most int, mark string) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + mark
}
