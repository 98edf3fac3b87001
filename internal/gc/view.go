package gc

import (
	"time"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A View is everything that one round knows. Who fills it answers for that it is
// whole: with any list failed or stale there is no View and no round.
type View struct {
	Now     time.Time
	Cluster string // UID of the kube-system namespace; never empty
	Pools   []node.Pool
	Volumes []node.Volume
	Claims  []Claim
	// Unreadable holds what NamesOf says of every PersistentVolume of this node
	// that ClaimOf could not read. Volumes of these names count as wanted, in
	// whichever group they are.
	Unreadable []string
	// OrphansEvicted is how many orphans were evicted within the last OrphanAge, as
	// far as the caller knows. They count against OrphanShare: a limit on one plan
	// alone would only spread the loss over some rounds.
	OrphansEvicted int
}

// A key names a volume on this node.
type key struct {
	group volume.Group
	name  volume.Name
}

func keyOf(v *node.Volume) key { return key{v.Group, v.Name} }

// volumesByKey are those with a name of their own: a doomed one has lost its.
func (v View) volumesByKey() map[key]*node.Volume {
	out := make(map[key]*node.Volume, len(v.Volumes))
	for i := range v.Volumes {
		out[keyOf(&v.Volumes[i])] = &v.Volumes[i]
	}
	return out
}
