package eviction

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// This file decides which volumes may be evicted, and so lose their data: unreferenced volumes, orphans, and
// replicas of datasets, each under its own conditions. Any doubt keeps a volume.

// A standing is what prevents the eviction of an unreferenced volume.
type standing int

const (
	standingFree   standing = iota // nothing
	standingYoung                  // it is not old enough
	standingBusy                   // its device is open, it is mounted, or snapshots depend on it
	standingWanted                 // a PersistentVolume names it, perhaps by a former name of its group, or is to be a copy of it
	standingIll                    // it or its pool has a problem
	standings
)

// unreferencedStanding returns what prevents the eviction of an unreferenced volume.
func (p *planner) unreferencedStanding(v *inventory.Volume, in *pool) standing {
	switch {
	case p.index.referenced(v), p.view.KeptElsewhere[v.UUID]:
		return standingWanted
	case !in.healthy(v):
		return standingIll
	case busy(v):
		return standingBusy
	case v.Reclaim == volume.ReclaimImmediate:
		return standingFree
	case v.Released.IsZero() || p.view.Now.Sub(ReleasedAt(v)) < p.policy.MinAge:
		return standingYoung
	}
	return standingFree
}

// orphanEvictable reports whether an orphan may be evicted. A PersistentVolume that names a volume of this name
// in another group also keeps it, because a group may have been renamed on the node.
func (p *planner) orphanEvictable(v *inventory.Volume, in *pool) bool {
	_, named := p.index.anywhere[v.Name]
	return p.policy.EvictOrphans && !named && !p.index.referenced(v) && in.healthy(v) && !busy(v) &&
		datesKnown(v) && p.view.Now.Sub(lastSeen(v)) > p.policy.OrphanAge
}

// replicaEvictable reports whether a replica may be evicted: it has no problem, its dataset allows the eviction
// and can load it again, and no pod uses it here. c wants the replica, and is the only PersistentVolume that
// names it.
func (p *planner) replicaEvictable(v *inventory.Volume, c *persistentvolume.Volume, in *pool) bool {
	sound := v.State == volume.Ready && !p.index.unread[v.Name] && in.healthy(v) && c.InGroup(v.GroupUUID)
	idle := !busy(v) && p.user(c) == ""
	ofAge := datesKnown(v) && p.view.Now.Sub(lastSeen(v)) >= p.policy.MinAge
	return sound && idle && removable(c) && c.Replica.Allowed() && ofAge
}

// removable reports whether deleting the claim of a replica leads to its removal by this daemon, and the claims
// of its possible users are known.
func removable(c *persistentvolume.Volume) bool {
	return c.Phase == corev1.VolumeBound && !c.Deleting && c.HasFinalizer && c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		c.ClaimName != "" && c.Replica.Readers != ""
}

// referenced reports whether a PersistentVolume wants a volume, has the policy Retain for it, is to be a copy of it,
// or cannot be parsed and may refer to it or be such a copy.
func (x *index) referenced(v *inventory.Volume) bool {
	_, copied := x.copied[KeyOf(v)]
	return copied || x.kept(v) || x.unread[v.Name]
}

// healthy reports whether neither a volume nor its pool has a problem.
func (p *pool) healthy(v *inventory.Volume) bool { return v.Problem == "" && p.ailing == "" }

// busy reports whether a volume is in use on the node, or has snapshots that need it.
func busy(v *inventory.Volume) bool { return v.InUse() || v.Origin }

// datesKnown reports whether it is known when a volume was created and last used.
func datesKnown(v *inventory.Volume) bool { return !v.Created.IsZero() && !v.LastUsed.IsZero() }
