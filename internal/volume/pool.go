package volume

import (
	"fmt"
	"strings"
)

// A PoolName names what volumes are allocated from: a volume group, GROUP/POOL for a thin pool in a
// group, or GROUP:POOL for a directory pool. Only PoolOf, DirectoryPoolOf and ParsePool create one.
type PoolName string

const (
	thinMark      = "/"
	directoryMark = ":"
)

// PoolOf returns the name of a thin pool in a group, or of the group itself if thinPool
// is empty.
func PoolOf(g Group, thinPool Name) PoolName {
	if thinPool == "" {
		return PoolName(g)
	}
	return PoolName(string(g) + thinMark + string(thinPool))
}

// DirectoryPoolOf returns the name of a directory pool in a group.
func DirectoryPoolOf(g Group, pool Name) PoolName {
	return PoolName(string(g) + directoryMark + string(pool))
}

// Pool returns the pool of a group that a volume of this shape is allocated from.
func (h Shape) Pool(g Group) PoolName {
	if h.DirectoryPool != "" {
		return DirectoryPoolOf(g, h.DirectoryPool)
	}
	return PoolOf(g, h.ThinPool)
}

// ParsePool parses the name of a pool. The error is a *FieldError.
func ParsePool(field, s string) (PoolName, error) {
	if group, pool, ok := strings.Cut(s, directoryMark); ok {
		g, err := ParseGroup(field, group)
		if err != nil {
			return "", err
		}
		n, err := ParseDirectoryPool(field, pool)
		return DirectoryPoolOf(g, n), err
	}
	group, thin, isThin := strings.Cut(s, thinMark)
	g, err := ParseGroup(field, group)
	if err != nil || !isThin {
		return PoolName(g), err
	}
	n, err := ParseThinPool(field, thin)
	if err != nil {
		return "", err
	}
	return PoolOf(g, n), nil
}

// Group returns the volume group that the pool is, or is in.
func (p PoolName) Group() Group {
	group, _, _ := strings.Cut(string(p), thinMark)
	group, _, _ = strings.Cut(group, directoryMark)
	return Group(group)
}

// Thin reports whether the pool is a thin pool.
func (p PoolName) Thin() bool { return strings.Contains(string(p), thinMark) }

// Directory reports whether the pool is a directory pool.
func (p PoolName) Directory() bool { return strings.Contains(string(p), directoryMark) }

// Noun returns "thin pool", "directory pool" or "volume group", for messages in which the name
// follows.
func (p PoolName) Noun() string {
	switch {
	case p.Thin():
		return "thin pool"
	case p.Directory():
		return "directory pool"
	}
	return "volume group"
}

// CreateCommand returns the command that creates such a pool on a node.
func (p PoolName) CreateCommand() string {
	if group, pool, thin := strings.Cut(string(p), thinMark); thin {
		return fmt.Sprintf("flexlvm vg create --name %s --thin --thin-pool %s DEVICE", group, pool)
	}
	if group, pool, directory := strings.Cut(string(p), directoryMark); directory {
		return fmt.Sprintf("flexlvm directories create --group %s --pool %s --size SIZE", group, pool)
	}
	return fmt.Sprintf("flexlvm vg create --name %s DEVICE", p)
}

// ParseThinPool checks the name of a thin pool within its group. The error is a
// *FieldError.
func ParseThinPool(field, s string) (Name, error) { return ParseName(field, s) }

// tagPool is the kind of a thin pool. ParseKind does not know it, so a thin pool is never mistaken
// for a volume.
const tagPool = tagKind + "pool"

// PoolTags returns the tags of a thin pool in which flexlvm volumes may be created.
func PoolTags() []string { return []string{TagOwned, tagPool} }

// OwnedPool reports whether a thin pool with these tags is for flexlvm volumes.
func OwnedPool(tags []string) bool {
	kind := false
	for _, t := range tags {
		kind = kind || t == tagPool
	}
	return kind && Owned(tags)
}
