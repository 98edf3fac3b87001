package destination

import "strings"

// Parent returns the directory that holds path, "" at the top.
func Parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return ""
	}
	return path[:i]
}
