package volume

import "unicode/utf8"

// Clip returns text, or if it has more than most bytes, its beginning of at most that many
// bytes and mark, which says that something is left out. No character is cut in two: events
// and conditions have to be valid UTF-8.
func Clip(text string, most int, mark string) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + mark
}
