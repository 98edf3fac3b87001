package destination

import "strings"

// Parent is the directory that holds path, "" at the top.
func Parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return ""
	}
	return path[:i]
}
