package eviction

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// This file decides which volumes may be evicted, and so lose their data: unreferenced volumes, orphans, and
// replicas of datasets, each under its own conditions. Any doubt keeps a volume.

// whyKept returns what prevents the eviction of an unreferenced volume; empty if nothing does.
func (p *planner) whyKept(v *inventory.Volume, pool *poolPlan) Kept {
	switch {
	case p.index.referenced(v), p.view.KeptElsewhere[v.UUID]:
		return KeptWanted
	case !pool.healthy(v):
		return KeptProblem
	case busy(v):
		return KeptInUse
	case v.Reclaim == volume.ReclaimImmediate:
		return ""
	case v.Released.IsZero() || p.view.Now.Sub(ReleasedAt(v)) < p.policy.MinAge:
		return KeptTooYoung
	}
	return ""
}

// orphanEvictable reports whether an orphan may be evicted. A PersistentVolume that names a volume of this name
// in another group also keeps it, because a group may have been renamed on the node.
func (p *planner) orphanEvictable(v *inventory.Volume, pool *poolPlan) bool {
	_, named := p.index.wantedByName[v.Name]
	return p.policy.EvictOrphans && !named && !p.index.referenced(v) && pool.healthy(v) && !busy(v) &&
		datesKnown(v) && p.view.Now.Sub(lastSeen(v)) > p.policy.OrphanAge
}

// replicaEvictable reports whether a replica may be evicted: it has no problem, its dataset allows the eviction
// and can load it again, and no pod uses it here. c wants the replica, and is the only PersistentVolume that
// names it.
func (p *planner) replicaEvictable(v *inventory.Volume, c *persistentvolume.Volume, pool *poolPlan) bool {
	sound := v.State == volume.Ready && !p.index.unreadable[v.Name] && pool.healthy(v) && c.InGroup(v.GroupUUID)
	idle := !busy(v) && p.user(c) == "" && !p.view.ReplicasInUse[c.UID]
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
	_, isSource := x.cloneSources[KeyOf(v)]
	return isSource || x.kept(v) || x.unreadable[v.Name]
}

// healthy reports whether neither a volume nor its pool has a problem.
func (p *poolPlan) healthy(v *inventory.Volume) bool { return v.Problem == "" && p.problem == "" }

// busy reports whether a volume is in use on the node, or has snapshots that need it.
func busy(v *inventory.Volume) bool { return v.InUse() || v.HasSnapshots }

// datesKnown reports whether it is known when a volume was created and last used.
func datesKnown(v *inventory.Volume) bool { return !v.Created.IsZero() && !v.LastUsed.IsZero() }
