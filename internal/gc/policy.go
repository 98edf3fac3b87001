package gc

import (
	"errors"
	"time"
)

// A Policy says when volumes are evicted. The thresholds and ages mean what they
// mean in kubelet's image garbage collection.
type Policy struct {
	// HighPercent of a pool in use starts evicting, 100 never does.
	HighPercent int
	// LowPercent in use ends it.
	LowPercent int
	// MinAge is how long a volume has been unreferenced before it may go, unless
	// its class says that it goes at once.
	MinAge time.Duration
	// MaxAge is how long a volume may be unreferenced at most; 0 means for ever.
	MaxAge time.Duration
	// EvictOrphans lets volumes that no PersistentVolume explains go under pressure,
	// once nothing unreferenced is left.
	EvictOrphans bool
	// OrphanAge is how long an orphan has neither been made nor used before it may go.
	OrphanAge time.Duration
	// OrphanShare is how many of the node's volumes, in percent, may go as orphans
	// at one go; it always allows one.
	OrphanShare int
}

// DefaultPolicy is what the daemon does unless told otherwise.
func DefaultPolicy() Policy {
	return Policy{
		HighPercent: 85,
		LowPercent:  80,
		MinAge:      2 * time.Minute,
		OrphanAge:   24 * time.Hour,
		OrphanShare: 10,
	}
}

// Validate checks what the flags say. The error names every flag that is wrong,
// what it holds and what it may hold.
func (p Policy) Validate() error {
	return errors.Join(p.checkThresholds(), p.checkAges(), p.checkOrphans())
}
