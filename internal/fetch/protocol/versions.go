package protocol

import "strconv"

// A volume of a dataset may hold several versions of it, each in its own directory. Readers get the
// current version, which never changes once it is complete; a newer one may follow.
const (
	// VersionsDir has one directory for each version, named by its number. A loader creates them, and
	// removes those whose names end in UnreadSuffix. The node's driver adds this suffix to versions
	// before the current one that nothing has mounted.
	VersionsDir = ".flexlvm/versions"
	// CurrentFile contains the number of the current version. Without it there are no versions: the
	// data are in the root of the volume.
	CurrentFile = ".flexlvm/current"
	// UnreadSuffix marks a version that nobody reads, nor ever will.
	UnreadSuffix = ".unread"
)

// maxVersion bounds the numbers of versions.
const maxVersion = 1 << 30

// ParseVersion parses the number of a version: at least 1, and in its only spelling.
func ParseVersion(text string) (number int, is bool) {
	number, err := strconv.Atoi(text)
	return number, err == nil && number >= 1 && number <= maxVersion && strconv.Itoa(number) == text
}
