package eviction_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// only returns the claim of a volume, if exactly one claim names it.
func (o oracle) only(v inventory.Volume) (only persistentvolume.Volume, is bool) {
	for _, c := range o.view.PersistentVolumes {
		if c.Group == v.Group && c.Volume == v.Name {
			if is {
				return only, false
			}
			only, is = c, true
		}
	}
	return only, is
}

// going reports whether the eviction of the replica is confirmed.
func (o oracle) going(v inventory.Volume) bool {
	c, is := o.only(v)
	return is && (v.State == volume.Ready || v.State == volume.Creating) && v.Cluster == o.view.Cluster && c.Cluster == o.view.Cluster &&
		v.Kind == volume.Dataset && c.Replica.Dataset != "" && !c.Replica.Evictable.IsZero() && !c.Replica.Garbled
}

// leaves reports whether the replica's eviction may be requested.
func (o oracle) leaves(v inventory.Volume) bool {
	c, is := o.only(v)
	if !is || v.State != volume.Ready || v.Kind != volume.Dataset || !o.view.PodsKnown || o.gone(c) || c.Deleting {
		return false
	}
	left := oracle{o.view, o.policy}
	left.view.PersistentVolumes = nil // apart from its own claim nothing may keep it
	r := c.Replica
	for _, name := range []string{c.ClaimName, r.Readers} {
		if name == "" || o.view.Users[eviction.ClaimKey{Namespace: c.ClaimNamespace, Name: name}] != "" {
			return false
		}
	}
	return !o.stalled(v.Pool()) && !left.untouchable(v) && c.Cluster == v.Cluster && c.Phase == corev1.VolumeBound && c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
		c.HasFinalizer && r.Dataset != "" && r.Policy == volume.EvictLRU && r.Complete && !r.Garbled && r.Evictable.IsZero() &&
		!o.view.Now.Before(v.LastUsed.Add(o.policy.MinAge)) && !o.view.Now.Before(v.Created.Add(o.policy.MinAge))
}

// checkReplicaEvictions checks that evictions are requested only of evictable replicas, once, and in order.
func (o oracle) checkReplicaEvictions(t *testing.T, seed uint64, got eviction.Result) {
	t.Helper()
	seen := map[string]bool{}
	for _, e := range got.Evictions {
		seen[e.Volume.UUID] = true
		require.Equal(t, e.Reason == eviction.ReasonReplica, e.Replica != persistentvolume.Replica{}, "seed %d", seed)
	}
	last := map[volume.PoolName]eviction.ReplicaEviction{}
	for _, f := range got.ReplicaEvictions {
		v := f.Volume
		require.True(t, o.leaves(v), "seed %d: replica %s must stay", seed, v.Name)
		require.False(t, seen[v.UUID], "seed %d: %s goes twice", seed, v.Name)
		seen[v.UUID] = true
		require.Contains(t, f.Message, v.Allocated.String())
		if before, found := last[v.Pool()]; found && before.PersistentVolume.Replica.Asked.Equal(f.PersistentVolume.Replica.Asked) {
			require.LessOrEqual(t, before.Volume.LastUsed, v.LastUsed, "seed %d", seed)
		}
		last[v.Pool()] = f
	}
	for _, v := range o.view.Volumes {
		after, found := last[v.Pool()]
		if found && o.leaves(v) && !seen[v.UUID] && v.Allocated > 0 {
			if c, _ := o.only(v); !c.Replica.Asked.IsZero() || after.PersistentVolume.Replica.Asked.IsZero() {
				require.LessOrEqual(t, after.Volume.LastUsed, v.LastUsed, "seed %d: %s goes before %s", seed, v.Name, after.Volume.Name)
			}
		}
	}
	if got.Blocked != "" {
		require.Empty(t, got.ReplicaEvictions, "seed %d", seed)
	}
	for _, m := range eviction.Steps(o.view, got) {
		asked := slices.ContainsFunc(got.ReplicaEvictions, func(f eviction.ReplicaEviction) bool { return f.PersistentVolume.PV == m.PersistentVolume.PV })
		require.Equal(t, asked, m.Step != eviction.StepWithdraw, "seed %d: %s", seed, m.PersistentVolume.PV)
		require.True(t, o.view.PodsKnown && m.PersistentVolume.Replica.Evictable.IsZero() || m.PersistentVolume.Replica.Garbled, "seed %d", seed)
	}
}

// checkReplicaEvictionsHelp checks that replicas are evicted only for volumes of claims, and that without the last of
// them fewer could be created. It reports whether the pool had such evictions, and nothing else in it that makes the
// sum uncertain.
func (o oracle) checkReplicaEvictionsHelp(t *testing.T, seed uint64, got eviction.Result, p eviction.PoolResult) bool {
	t.Helper()
	var leaving []eviction.ReplicaEviction
	for _, f := range got.ReplicaEvictions {
		if f.Volume.Pool() == p.Pool.Name {
			leaving = append(leaving, f)
		}
	}
	theirs, wants := o, o
	isDataset := func(c persistentvolume.Volume) bool { return c.Kind == volume.Dataset }
	theirs.view.PersistentVolumes = slices.DeleteFunc(slices.Clone(o.view.PersistentVolumes), func(c persistentvolume.Volume) bool { return !isDataset(c) })
	wants.view.PersistentVolumes = slices.DeleteFunc(slices.Clone(o.view.PersistentVolumes), isDataset)
	if len(leaving) == 0 {
		return false
	}
	require.NotEmpty(t, wants.needs(p.Pool), "seed %d: replicas go for other replicas", seed)
	if o.policy.EvictOrphans {
		return false
	}
	reach := p.Pool.Free
	for _, v := range o.view.Volumes {
		if v.Pool() == p.Pool.Name && (o.doomed(v) || o.going(v) || o.candidate(v)) {
			reach += v.Allocated
		}
	}
	for _, need := range theirs.needs(p.Pool) {
		reach -= need
	}
	if reach < 0 {
		return false
	}
	for _, f := range leaving {
		reach += f.Volume.Allocated
	}
	last := leaving[len(leaving)-1].Volume.Allocated
	needs := wants.needs(p.Pool)
	require.Less(t, unmet(p.Pool, needs, reach), unmet(p.Pool, needs, reach-last), "seed %d: nobody is served by the last replica of pool %s", seed, p.Pool.Name)
	return true
}
