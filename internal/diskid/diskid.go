// Package diskid compares the persistent names of disks: a device's identity, with "-partN" for a
// partition, or "fs-UUID" of a file system, with ":/DIRECTORY" for a part of it. It does no I/O,
// and is built for every platform that the kubectl plugin runs on.
package diskid

import "strings"

// Overlap reports whether two disks, as annotations and ledgers name them, are the same, or one is a part
// of the other.
func Overlap(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if a == b || PartitionOf(a, b) || PartitionOf(b, a) {
		return true
	}
	one, oneRoot, oneIs := parseFilesystem(a)
	other, otherRoot, otherIs := parseFilesystem(b)
	return oneIs && otherIs && one == other && (Within(oneRoot, otherRoot) || Within(otherRoot, oneRoot))
}

// PartitionOf reports whether one disk is a partition of another.
func PartitionOf(part, whole string) bool {
	number, there := strings.CutPrefix(part, whole+"-part")
	return there && whole != "" && number != "" && strings.Trim(number, "0123456789") == ""
}

// parseFilesystem splits the name of a file system, or of a directory of one.
func parseFilesystem(disk string) (uuid, root string, is bool) {
	rest, is := strings.CutPrefix(disk, "fs-")
	uuid, root, part := strings.Cut(rest, ":")
	if !part {
		root = "/"
	}
	return uuid, root, is
}

// OfFilesystem returns the name of a file system, from its UUID, or of its directory root, from
// both.
func OfFilesystem(uuid, root string) string {
	if root == "/" {
		return "fs-" + uuid
	}
	return "fs-" + uuid + ":" + root
}

// Within reports whether a path equals another, or is below it.
func Within(path, above string) bool {
	return path == above || strings.HasPrefix(path, strings.TrimSuffix(above, "/")+"/")
}
