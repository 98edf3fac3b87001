package volume

// EvictionPolicy is whether a dataset's replica may be evicted while its dataset is
// wanted.
type EvictionPolicy string

const (
	// EvictNever keeps a replica as long as its dataset is wanted.
	EvictNever EvictionPolicy = "Never"
	// EvictLRU lets a replica that no pod uses go when its pool needs the room, the
	// least recently used first.
	EvictLRU EvictionPolicy = "LRU"
)

// ParseEvictionPolicy checks an EvictionPolicy; empty means EvictNever. The error is
// a *FieldError.
func ParseEvictionPolicy(field, s string) (EvictionPolicy, error) {
	return oneOf(field, s, EvictNever, EvictLRU)
}
