package volume

// EvictionPolicy is whether a replica may be evicted while its dataset is wanted.
type EvictionPolicy string

const (
	// EvictNever keeps a replica as long as its dataset is wanted.
	EvictNever EvictionPolicy = "Never"
	// EvictLRU evicts replicas that no pod uses when their pool needs the room, the least
	// recently used first.
	EvictLRU EvictionPolicy = "LRU"
)

// ParseEvictionPolicy checks an EvictionPolicy; empty means EvictNever. The error is
// a *FieldError.
func ParseEvictionPolicy(field, s string) (EvictionPolicy, error) {
	return oneOf(field, s, EvictNever, EvictLRU)
}
