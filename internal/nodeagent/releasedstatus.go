package nodeagent

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Bounds of the released volumes in the NodeStorage: a volume to bring back is among the last released ones,
// and the next to be evicted are the first ones of each pool.
const (
	lastReleased = flexlvmv1.LastReleased
	firstToGo    = 10
	maxReleased  = 100
	// maxReleasedBytes bounds the size of all entries together, whatever their names are.
	maxReleasedBytes = 40 << 10
)

// releasedStatus returns the released volumes for the NodeStorage, newest first. The data of their
// PersistentVolumes comes from origin, by LVM's UUID, or from the last list, because an earlier process has
// seen them. The bounds apply to these and the unseen ones together. The unseen ones are recorded nowhere else,
// so these may be fewer than lastReleased, or none.
func releasedStatus(all []eviction.Released, origin func(uuid string) *flexlvmv1.ReleasedOrigin, was, unseen []flexlvmv1.ReleasedVolume) []flexlvmv1.ReleasedVolume {
	known := map[string]*flexlvmv1.ReleasedOrigin{}
	for i := range was {
		known[was[i].FilesystemUUID] = was[i].Origin
	}
	newest := slices.Clone(all)
	slices.SortStableFunc(newest, func(a, b eviction.Released) int { return b.Volume.Released.Compare(a.Volume.Released) })
	var out []flexlvmv1.ReleasedVolume
	left := maxReleasedBytes - written(unseen)
	for i, r := range newest {
		goes := r.Order > 0 && r.Order <= firstToGo
		if (i >= lastReleased && !goes) || len(out)+len(unseen) >= maxReleased {
			continue
		}
		one := releasedVolume(r)
		if one.FilesystemUUID != "" {
			if one.Origin = origin(r.Volume.UUID); one.Origin == nil {
				one.Origin = known[one.FilesystemUUID].DeepCopy()
			}
		}
		if left -= written(one); left < 0 {
			break
		}
		out = append(out, one)
	}
	return out
}

// written returns how many bytes a value takes in the NodeStorage.
func written(what any) int {
	text, err := json.Marshal(what)
	if err != nil {
		return maxReleasedBytes
	}
	return len(text)
}

// releasedUnseen returns the entries of the last list whose volumes cannot be seen now, because they may still be
// there. They were listed before, so their number does not grow. None of them is evicted now: retained volumes stay
// so, and any other reason would be out of date before the volume is seen again.
func releasedUnseen(in inventory.Inventory, was []flexlvmv1.ReleasedVolume) (out []flexlvmv1.ReleasedVolume) {
	for _, v := range was {
		if !mayHoldUnseen(in, volume.PoolName(v.Pool)) || isSeen(in, v) {
			continue
		}
		if v.Kept != flexlvmv1.KeptRetained {
			v.EvictionOrder, v.Kept = 0, flexlvmv1.KeptProblem
		}
		out = append(out, v)
	}
	return out
}

// mayHoldUnseen reports whether a pool may have volumes that an inventory lacks: the pool cannot be read, or its
// volume group is not seen, as while a disk is late or LVM's devices file hides it.
func mayHoldUnseen(in inventory.Inventory, name volume.PoolName) bool {
	groupSeen := false
	for _, p := range in.Pools {
		if p.Name == name && p.VolumesUnknown() {
			return true
		}
		groupSeen = groupSeen || p.Name.Group() == name.Group()
	}
	return !groupSeen
}

// isSeen reports whether an inventory has the volume of an entry. The volume may be in another pool, because its
// group was renamed, or because LVM allows two groups of one name, of which one may be readable.
func isSeen(in inventory.Inventory, r flexlvmv1.ReleasedVolume) bool {
	return slices.ContainsFunc(in.Volumes, func(v inventory.Volume) bool {
		return v.FS == r.FilesystemUUID && (v.FS != "" || string(v.Pool()) == r.Pool && string(v.Name) == r.Name)
	})
}

func releasedVolume(r eviction.Released) flexlvmv1.ReleasedVolume {
	v := &r.Volume
	out := flexlvmv1.ReleasedVolume{
		Pool: string(v.Pool()), Name: string(v.Name), State: string(v.State), Namespace: v.Namespace,
		Size: quantity(v.Size), Room: quantity(v.Allocated), LastUsed: second(v.LastUsed), Released: second(eviction.ReleasedAt(v)), Created: second(v.Created),
		EvictionOrder: int32(r.Order), Kept: string(r.Kept), FilesystemUUID: v.FS, FSType: string(v.FSType), Encrypted: v.Encrypted,
	}
	if v.Kind != volume.Claim {
		out.Kind = string(v.Kind)
	}
	if v.Layout != volume.Linear && v.Layout != volume.Thin && v.Layout != volume.Directory {
		out.Layout, out.Stripes, out.StripeSizeKiB, out.Mirrors = string(v.Layout), int32(v.Stripes), int32(v.StripeKiB), int32(v.Mirrors)
	}
	if v.AllocatedWhenFull > v.Allocated {
		out.FullSize = quantity(v.AllocatedWhenFull)
	}
	if v.Reclaim != volume.ReclaimLazy {
		out.Reclaim = string(v.Reclaim)
	}
	if v.Wipe != volume.WipeNone {
		out.Wipe = string(v.Wipe)
	}
	return out
}

func policyStatus(p eviction.Policy) *flexlvmv1.EvictionPolicy {
	return &flexlvmv1.EvictionPolicy{
		HighThresholdPercent: int32(p.HighPercent), LowThresholdPercent: int32(p.LowPercent),
		MinAge: metav1.Duration{Duration: p.MinAge}, MaxAge: metav1.Duration{Duration: p.MaxAge}, Headroom: p.Headroom.String(),
	}
}
