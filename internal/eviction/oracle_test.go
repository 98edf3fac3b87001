package eviction_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An oracle defines what a plan must be, slowly and one question at a time.
type oracle struct {
	view   eviction.View
	policy eviction.Policy
}

// gone reports whether the API has given this claim up.
func (o oracle) gone(c persistentvolume.Volume) bool {
	if c.Cluster != o.view.Cluster {
		return false
	}
	if c.Deleting {
		return c.Phase != corev1.VolumeBound
	}
	ended := c.Phase == corev1.VolumeReleased || c.Phase == corev1.VolumeFailed
	return ended && c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// untouchable reports whether a volume may not be evicted for any reason.
func (o oracle) untouchable(v inventory.Volume) bool {
	for _, c := range o.view.PersistentVolumes {
		same := c.Group == v.Group || c.GroupUUID != "" && c.GroupUUID == v.GroupUUID
		if same && c.Volume == v.Name && (!o.gone(c) || c.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain) {
			return true
		}
	}
	return o.closed(v.Group) || slices.Contains(o.view.Unreadable, string(v.Name)) || v.Cluster != o.view.Cluster ||
		v.Open || len(v.Mounts) > 0 || v.HasSnapshots || v.Problem != "" ||
		v.State == volume.Retained || v.State == volume.Doomed
}

// closed reports whether nothing in the group may be changed.
func (o oracle) closed(g volume.Group) bool {
	return slices.ContainsFunc(o.view.Pools, func(p inventory.Pool) bool { return p.Name.Group() == g && (p.Missing > 0 || p.Exported) })
}

// doomed reports whether the room of the volume is about to be free.
func (o oracle) doomed(v inventory.Volume) bool {
	return v.State == volume.Doomed && v.Cluster == o.view.Cluster && v.Problem == ""
}

// stalled reports whether so many removals in the pool have failed that no more are begun to free room.
func (o oracle) stalled(pool volume.PoolName) bool {
	failed := 0
	for _, v := range o.view.Volumes {
		if v.Pool() == pool && v.State == volume.Doomed && v.Cluster == o.view.Cluster && v.Problem != "" {
			failed++
		}
	}
	return failed > 1
}

// candidate reports whether the volume may be evicted as an unreferenced one.
func (o oracle) candidate(v inventory.Volume) bool {
	anyway := v.Reclaim == volume.ReclaimImmediate || o.policy.MaxAge > 0 && o.view.Now.After(v.Released.Add(o.policy.MaxAge))
	old := v.Reclaim == volume.ReclaimImmediate || !o.view.Now.Before(v.Released.Add(o.policy.MinAge))
	return v.State == unreferenced && !o.untouchable(v) && old && (anyway || !o.stalled(v.Pool()))
}

// orphan reports whether the volume may be evicted as an orphan.
func (o oracle) orphan(v inventory.Volume) bool {
	named := slices.ContainsFunc(o.view.PersistentVolumes, func(c persistentvolume.Volume) bool {
		return c.Volume == v.Name && (c.Group == v.Group || c.GroupUUID != "" && c.GroupUUID == v.GroupUUID)
	})
	latest := v.Created
	if v.LastUsed.After(latest) {
		latest = v.LastUsed
	}
	return o.policy.EvictOrphans && (v.State == volume.Ready || v.State == volume.Creating) && !named &&
		!o.untouchable(v) && !o.stalled(v.Pool()) && o.view.Now.After(latest.Add(o.policy.OrphanAge))
}

// needs returns the needs of a pool, the smallest first. A thin volume needs the unwritten part of its promise.
func (o oracle) needs(pool inventory.Pool) (needs []volume.Bytes) {
	for _, c := range o.view.PersistentVolumes {
		usable := c.Phase == corev1.VolumePending || c.Phase == corev1.VolumeAvailable || c.Phase == corev1.VolumeBound
		if c.Pool() != pool.Name || !usable || o.gone(c) || c.Cluster == "another" {
			continue
		}
		i := slices.IndexFunc(o.view.Volumes, func(v inventory.Volume) bool { return v.Group == c.Group && v.Name == c.Volume })
		if i < 0 {
			needs = append(needs, c.Charged)
			continue
		}
		v := o.view.Volumes[i]
		grown := volume.XFSDeviceSize(c.Size, c.Inodes) - v.Allocated
		wanted := v.Size < c.Size
		if pool.Thin != nil {
			grown, wanted = c.Charged-v.Allocated, true
		}
		if (v.State == volume.Ready || v.State == volume.Creating) && v.Cluster == c.Cluster && wanted && grown > 0 {
			needs = append(needs, grown)
		}
	}
	if again := o.overwritten(pool); again > 0 {
		needs = append(needs, again)
	}
	slices.Sort(needs)
	return needs
}

// overwritten returns how much claims may overwrite in a thin pool, which allocates it again: what all volumes
// together hold beyond what is in use, and at most what claims hold of their charges.
func (o oracle) overwritten(pool inventory.Pool) volume.Bytes {
	if pool.Thin == nil || !pool.Thin.Known {
		return 0
	}
	var claimed, all volume.Bytes
	for _, v := range o.view.Volumes {
		if v.Pool() != pool.Name {
			continue
		}
		i := slices.IndexFunc(o.view.PersistentVolumes, func(c persistentvolume.Volume) bool {
			usable := c.Phase == corev1.VolumePending || c.Phase == corev1.VolumeAvailable || c.Phase == corev1.VolumeBound
			return v.Group == c.Group && v.Name == c.Volume && c.Kind != volume.Dataset && c.Pool() == pool.Name &&
				usable && !o.gone(c) && c.Cluster == v.Cluster && c.Cluster != "another"
		})
		held := v.Allocated
		if i >= 0 && (v.State == volume.Ready || v.State == volume.Creating) {
			held = min(held, o.view.PersistentVolumes[i].Charged)
			claimed += held
		}
		all += held
	}
	return max(0, min(claimed, all-(pool.Size-pool.Free)))
}

// served returns how many needs fit in room, the smallest first.
func served(needs []volume.Bytes, room volume.Bytes) (n int) {
	for _, need := range needs {
		if room -= need; room < 0 {
			break
		}
		n++
	}
	return n
}

// unmet returns how much of the needs of a pool room cannot serve: the number of volumes, or the bytes of thin ones,
// which any room serves.
func unmet(pool inventory.Pool, needs []volume.Bytes, room volume.Bytes) int64 {
	if pool.Thin == nil {
		return int64(len(needs) - served(needs, room))
	}
	var sum volume.Bytes
	for _, need := range needs {
		sum += need
	}
	return int64(max(0, sum-room))
}

// checkEach checks that no volume is evicted that must stay, none twice, and none while evictions are blocked.
func (o oracle) checkEach(t *testing.T, seed uint64, got eviction.Result) {
	t.Helper()
	seen, orphans, ours := map[string]bool{}, 0, 0
	for _, e := range got.Evictions {
		require.False(t, o.untouchable(e.Volume), "seed %d: %s must stay", seed, e.Volume.Name)
		require.False(t, seen[e.Volume.UUID], "seed %d: %s goes twice", seed, e.Volume.Name)
		seen[e.Volume.UUID] = true
		require.Contains(t, e.Message, e.Volume.Allocated.String())
		require.Contains(t, e.Message, string(e.Volume.Name))
		require.False(t, strings.Contains(e.Message, "%!"), e.Message)
		if e.Reason == eviction.ReasonOrphan {
			orphans++
			require.True(t, o.orphan(e.Volume), "seed %d: %s is no orphan that may go", seed, e.Volume.Name)
		} else {
			require.True(t, o.candidate(e.Volume), "seed %d: %s is no candidate", seed, e.Volume.Name)
		}
	}
	for _, v := range o.view.Volumes {
		if v.Cluster == o.view.Cluster {
			ours++
		}
	}
	require.LessOrEqual(t, orphans, max(0, max(1, ours*o.policy.OrphanShare/100)-o.view.OrphansEvicted), "seed %d", seed)
	if got.Blocked != "" {
		require.Empty(t, got.Evictions, "seed %d", seed)
	}
}

// checkPool checks that no more is evicted than is needed, no less than helps, and in order. It reports whether some
// of the promises in a pool could be served and others not.
func (o oracle) checkPool(t *testing.T, seed uint64, got eviction.Result, p eviction.PoolResult) bool {
	t.Helper()
	needs, coming := o.needs(p.Pool), p.Pool.Free
	var left []inventory.Volume // candidates that are not evicted
	for _, v := range o.view.Volumes {
		if v.Pool() == p.Pool.Name && (o.doomed(v) || o.going(v)) {
			coming += v.Allocated
		}
		if v.Pool() == p.Pool.Name && o.candidate(v) {
			left = append(left, v)
		}
	}
	var last *eviction.Eviction // the last one that freed room
	for i := range got.Evictions {
		e := &got.Evictions[i]
		if e.Volume.Pool() != p.Pool.Name || e.Reason == eviction.ReasonLVMMetadata { // checkMetadata checks these
			continue
		}
		left = slices.DeleteFunc(left, func(v inventory.Volume) bool { return v.UUID == e.Volume.UUID })
		o.checkNeed(t, seed, e, p.Pool, needs, coming)
		if last != nil && last.Volume.State == e.Volume.State {
			require.LessOrEqual(t, last.Volume.LastUsed, e.Volume.LastUsed, "seed %d", seed)
		}
		if e.Reason != eviction.ReasonImmediate && e.Reason != eviction.ReasonMaxAge {
			require.Positive(t, e.Volume.Allocated, "seed %d: %s gives nothing", seed, e.Volume.Name)
			last = e
		}
		if o.lastForPromises(got.Evictions, i) {
			require.Greater(t, unmet(p.Pool, needs, coming), unmet(p.Pool, needs, coming+e.Volume.Allocated),
				"seed %d: without %s as many promises would be served", seed, e.Volume.Name)
		}
		coming += e.Volume.Allocated
	}
	if p.Pool.Thin != nil && !p.Pool.Thin.Known {
		require.Nil(t, last, "seed %d: nobody knows how full the pool is", seed)
		require.NotEmpty(t, p.Closed, "seed %d", seed)
		return false
	}
	if got.Blocked != "" {
		return false
	}
	var room volume.Bytes
	for _, v := range left {
		room += v.Allocated
		require.NotEqual(t, volume.ReclaimImmediate, v.Reclaim, "seed %d: %s should go at once", seed, v.Name)
		if last != nil && v.Allocated > 0 {
			require.NotEqual(t, eviction.ReasonOrphan, last.Reason, "seed %d: %s goes before any orphan", seed, v.Name)
			require.LessOrEqual(t, last.Volume.LastUsed, v.LastUsed, "seed %d: %s goes before %s", seed, v.Name, last.Volume.Name)
		}
	}
	require.Equal(t, unmet(p.Pool, needs, coming), unmet(p.Pool, needs, coming+room), "seed %d: more promises could be served", seed)
	n := served(needs, coming)
	for _, f := range got.ReplicaEvictions { // these count as coming before the thresholds are checked
		if f.Volume.Pool() == p.Pool.Name {
			coming += f.Volume.Allocated
		}
	}
	if !o.uses(p.Pool) && len(needs) == 0 {
		require.Zero(t, p.Shortfall, "seed %d: flexlvm has nothing in the pool", seed)
		require.False(t, p.Pressure && p.Pool.Thin == nil, "seed %d: flexlvm has nothing in the pool", seed)
	} else if o.full(p.Pool, coming, o.policy.HighPercent) && o.policy.HighPercent < 100 {
		inUse := o.inUse(p.Pool, coming+room)
		if !inUse {
			require.Positive(t, p.Shortfall, "seed %d", seed)
		}
		if p.Pool.Thin != nil || !o.beyondLow(p.Pool, coming+room) {
			require.Zero(t, room, "seed %d: the pool is too full and candidates are left", seed)
		}
		gap := p.Pool.Size * volume.Bytes(o.policy.HighPercent-o.policy.LowPercent) / 100
		require.LessOrEqual(t, room, gap, "seed %d: more than that is left above what is in use", seed)
		require.Equal(t, inUse, p.InUseMessage != "", "seed %d: %s", seed, p.InUseMessage)
	}
	require.Equal(t, p.Shortfall > 0, p.ShortfallMessage != "", "seed %d", seed)
	return n > 0 && n < len(needs) && last != nil
}

// lastForPromises reports whether this eviction is the last one of a pool that is for promises alone.
func (o oracle) lastForPromises(all []eviction.Eviction, i int) bool {
	if all[i].Reason != eviction.ReasonPromised {
		return false
	}
	if i+1 == len(all) || all[i+1].Volume.Pool() != all[i].Volume.Pool() {
		return true
	}
	return all[i+1].Reason == eviction.ReasonHighThreshold
}

// checkNeed checks that each eviction is needed at its turn.
func (o oracle) checkNeed(t *testing.T, seed uint64, e *eviction.Eviction, pool inventory.Pool, needs []volume.Bytes, coming volume.Bytes) {
	t.Helper()
	short := unmet(pool, needs, coming) > 0
	over := o.policy.HighPercent < 100 && o.full(pool, coming, o.policy.LowPercent) &&
		pool.Size-coming > pool.Size*volume.Bytes(o.policy.LowPercent)/100
	switch e.Reason {
	case eviction.ReasonImmediate:
		require.Equal(t, volume.ReclaimImmediate, e.Volume.Reclaim, "seed %d", seed)
	case eviction.ReasonMaxAge:
		require.True(t, o.policy.MaxAge > 0 && o.view.Now.After(e.Volume.Released.Add(o.policy.MaxAge)), "seed %d", seed)
	case eviction.ReasonPromised:
		require.True(t, short, "seed %d: %s goes for promises that are served", seed, e.Volume.Name)
	case eviction.ReasonHighThreshold:
		require.True(t, over, "seed %d: %s goes although the pool is at its low threshold", seed, e.Volume.Name)
	case eviction.ReasonOrphan:
		require.True(t, short || over, "seed %d: %s goes without pressure", seed, e.Volume.Name)
	}
}

// inUse reports whether volumes in use fill the pool beyond its low threshold, and nothing else is wrong with it.
// room is what would be left after all evictions.
func (o oracle) inUse(p inventory.Pool, room volume.Bytes) bool {
	failed := slices.ContainsFunc(o.view.Volumes, func(v inventory.Volume) bool {
		return v.Pool() == p.Name && v.State == volume.Doomed && v.Cluster == o.view.Cluster && v.Problem != ""
	})
	return !o.overcommitted(p, room) && !o.closed(p.Name.Group()) && !failed && o.beyondLow(p, room)
}

// beyondLow reports whether a pool with this much room is over its low threshold.
func (o oracle) beyondLow(p inventory.Pool, room volume.Bytes) bool {
	return (p.Size-room)*100 > p.Size*volume.Bytes(o.policy.LowPercent)
}

// overcommitted reports whether the volumes of a thin pool may write more than it can give, apart from LVM's
// rounding.
func (o oracle) overcommitted(p inventory.Pool, room volume.Bytes) bool {
	for _, v := range o.view.Volumes {
		if v.Pool() == p.Name && v.Active && v.Kind != volume.Snapshot && (v.State == volume.Ready || v.State == volume.Creating) {
			room -= max(0, v.AllocatedWhenFull-v.Allocated)
		}
	}
	return p.Thin != nil && room < -p.Size/5000
}

// uses reports whether a volume of this cluster is in the pool.
func (o oracle) uses(p inventory.Pool) bool {
	return slices.ContainsFunc(o.view.Volumes, func(v inventory.Volume) bool {
		return v.Pool() == p.Name && v.State != "" && v.Cluster == o.view.Cluster
	})
}

func (o oracle) full(p inventory.Pool, coming volume.Bytes, percent int) bool {
	return p.Size > 0 && (p.Size-coming)*100 >= p.Size*volume.Bytes(percent)
}
