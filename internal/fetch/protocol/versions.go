package protocol

import "strconv"

// A volume of a dataset may hold several versions of it, each in its own directory. Readers get the
// current one, which never changes once it is complete; a newer one may follow.
const (
	// VersionsDir has one directory for each version, named by its number. A loader makes
	// them and removes those whose names end in UnreadSuffix; the node's driver renames
	// those to that which come before the current one and which nothing has mounted.
	VersionsDir = ".flexlvm/versions"
	// CurrentFile has the number of the current version. Without it there are no versions:
	// the data are in the root of the volume.
	CurrentFile = ".flexlvm/current"
	// UnreadSuffix marks a version that nobody reads, nor ever will.
	UnreadSuffix = ".unread"
)

// mostVersion bounds the numbers of versions.
const mostVersion = 1 << 30

// ParseVersion parses the number of a version, which is 1 or more and has one spelling.
func ParseVersion(text string) (number int, is bool) {
	number, err := strconv.Atoi(text)
	return number, err == nil && number >= 1 && number <= mostVersion && strconv.Itoa(number) == text
}
