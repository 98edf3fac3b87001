package gc

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Reason is why a volume goes, in one word.
type Reason string

// The reasons, in the order in which a plan serves them: what goes in any case
// comes first, so that its room counts for the rest.
const (
	// ReasonImmediate: its class says that it goes as soon as nobody wants it.
	ReasonImmediate Reason = "Immediate"
	// ReasonMaxAge: it has been unreferenced for longer than --max-age.
	ReasonMaxAge Reason = "MaxAge"
	// ReasonPromised: volumes promised on this node need its room.
	ReasonPromised Reason = "Promised"
	// ReasonHighThreshold: its pool is over --high-threshold-percent.
	ReasonHighThreshold Reason = "HighThreshold"
	// ReasonOrphan: there is pressure, nothing unreferenced is left, and
	// --evict-orphans is set.
	ReasonOrphan Reason = "Orphan"
)

// An Eviction is a volume that is to go. Volumes are removed in the order of the
// plan; one that cannot be removed leaves the others' reasons as they are.
type Eviction struct {
	Volume  node.Volume
	Reason  Reason
	Message string // why, in words with numbers
}

// An Orphan is a volume of ours and of this cluster, in state creating or ready,
// that no PersistentVolume explains.
type Orphan struct {
	Volume  node.Volume
	Age     time.Duration // since it was made or last used, whichever is later
	Message string
}

// A PoolResult is how a pool stands before anything of the plan is done.
type PoolResult struct {
	Pool node.Pool
	// Promised is what PersistentVolumes of this node still need.
	Promised volume.Bytes
	// Reclaimable is what volumes hold that may be evicted now, orphans not
	// included. While Result.Blocked says why not, nothing of it is evicted.
	Reclaimable volume.Bytes
	// UsedPercent of the pool, whoever uses it, rounded down.
	UsedPercent int
	// ByState counts the volumes of this cluster.
	ByState map[volume.State]int
	// Foreign counts logical volumes that are not ours, or another cluster's.
	Foreign int
	// Pressure: the pool is over its high threshold, or has less free space than
	// Promised.
	Pressure        bool
	PressureMessage string
	// Shortfall is the room that is missing even after the plan; 0 for none.
	Shortfall        volume.Bytes
	ShortfallMessage string
}

// A Result is what Plan has decided and found. Every list is sorted.
type Result struct {
	Evictions []Eviction
	Pools     []PoolResult  // by name
	Orphans   []Orphan      // the oldest first
	Foreign   []node.Volume // volumes of other clusters; never touched
	Problems  []node.Volume // volumes with a Problem, which a person should look at
	// Blocked says why nothing at all is evicted; empty where that is not so.
	Blocked string
}

// Plan decides which volumes go. It is pure.
func Plan(view View, policy Policy) Result { return Result{} }
