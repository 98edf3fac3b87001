package volume

import "strings"

// A PoolName names where volumes are cut from: a volume group, or GROUP/POOL for a
// thin pool in one. Only PoolOf and ParsePool make one.
type PoolName string

// PoolOf returns the name of a thin pool in a group, or of the group itself if thinPool
// is empty.
func PoolOf(g Group, thinPool Name) PoolName {
	if thinPool == "" {
		return PoolName(g)
	}
	return PoolName(string(g) + "/" + string(thinPool))
}

// ParsePool parses the name of a pool. The error is a *FieldError.
func ParsePool(field, s string) (PoolName, error) {
	group, thin, isThin := strings.Cut(s, "/")
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
	group, _, _ := strings.Cut(string(p), "/")
	return Group(group)
}

// Thin reports whether the pool is a thin pool.
func (p PoolName) Thin() bool { return strings.Contains(string(p), "/") }

// Noun returns "thin pool" or "volume group", for messages in which the name follows.
func (p PoolName) Noun() string {
	if p.Thin() {
		return "thin pool"
	}
	return "volume group"
}

// ParseThinPool checks the name of a thin pool within its group. The error is a
// *FieldError.
func ParseThinPool(field, s string) (Name, error) { return ParseName(field, s) }

// tagPool is the kind of a thin pool. ParseKind does not know it: what carries it is
// never taken for a volume.
const tagPool = tagKind + "pool"

// PoolTags returns the tags of a thin pool that flexlvm volumes may be made in.
func PoolTags() []string { return []string{TagOwned, tagPool} }

// OwnedPool reports whether a thin pool with these tags is for flexlvm volumes.
func OwnedPool(tags []string) bool {
	kind := false
	for _, t := range tags {
		kind = kind || t == tagPool
	}
	return kind && Owned(tags)
}
