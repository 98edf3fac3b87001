package discovery

import "path"

// Matches reports whether a name matches one of the patterns of the class.
func (c Class) Matches(name string) (bool, error) {
	found := c.Pattern == ""
	for _, one := range patternsOf(c.Pattern) {
		matches, err := path.Match(one, name)
		if err != nil {
			return false, err
		}
		found = found || matches
	}
	return found, nil
}

// patternsOf splits a list at its commas, except at those that belong to a pattern: within [], or
// after a backslash.
func patternsOf(list string) (out []string) {
	begin, within := 0, false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '\\':
			i++
		case c == '[' || c == ']':
			within = c == '['
		case c == ',' && !within:
			out = append(out, list[begin:i])
			begin = i + 1
		}
	}
	return append(out, list[begin:])
}
