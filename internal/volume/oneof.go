package volume

import "strings"

// oneOf parses s as one of the allowed values; empty means the first.
func oneOf[T ~string](field, s string, allowed ...T) (T, error) {
	if s == "" {
		return allowed[0], nil
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		if string(a) == s {
			return a, nil
		}
		names[i] = string(a)
	}
	return "", invalid(field, s, "is not known; it is one of %s", strings.Join(names, ", "))
}
