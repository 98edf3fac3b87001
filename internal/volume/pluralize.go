package volume

import "strconv"

// Pluralize returns n followed by its noun, singular or plural.
func Pluralize[N int | int32 | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(int64(n), 10) + " " + many
}
