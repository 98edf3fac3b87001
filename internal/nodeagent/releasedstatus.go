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
	mostReleased = 100
	// mostReleasedBytes bounds the size of all entries together, whatever their names are.
	mostReleasedBytes = 40 << 10
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
	left := mostReleasedBytes - written(unseen)
	for i, r := range newest {
		goes := r.Order > 0 && r.Order <= firstToGo
		if (i >= lastReleased && !goes) || len(out)+len(unseen) >= mostReleased {
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
		return mostReleasedBytes
	}
	return len(text)
}

// releasedUnseen returns the entries of the last list whose pools cannot be read now, because their volumes may
// still be there. LVM allows two groups of one name, of which one may be readable.
func releasedUnseen(f observation, was []flexlvmv1.ReleasedVolume) (out []flexlvmv1.ReleasedVolume) {
	for _, v := range was {
		unseen := slices.ContainsFunc(f.inventory.Pools, func(p inventory.Pool) bool { return p.VolumesUnknown() && v.Pool == string(p.Name) })
		seen := slices.ContainsFunc(f.result.Released, func(r eviction.Released) bool {
			return v.Pool == string(r.Volume.Pool()) && v.Name == string(r.Volume.Name) && v.FilesystemUUID == r.Volume.FS
		})
		if unseen && !seen {
			out = append(out, v)
		}
	}
	return out
}

func releasedVolume(r eviction.Released) flexlvmv1.ReleasedVolume {
	v := &r.Volume
	out := flexlvmv1.ReleasedVolume{
		Pool: string(v.Pool()), Name: string(v.Name), State: string(v.State), Namespace: v.Namespace,
		Size: quantity(v.Size), Room: quantity(v.Device), LastUsed: second(v.LastUsed), Released: second(eviction.ReleasedAt(v)), Created: second(v.Created),
		EvictionOrder: int32(r.Order), Kept: string(r.Kept), FilesystemUUID: v.FS, FSType: string(v.FSType), Encrypted: v.Encrypted,
	}
	if v.Kind != volume.Claim {
		out.Kind = string(v.Kind)
	}
	if v.Layout != volume.Linear && v.Layout != volume.Thin && v.Layout != volume.Directory {
		out.Layout, out.Stripes, out.StripeSizeKiB, out.Mirrors = string(v.Layout), int32(v.Stripes), int32(v.StripeKiB), int32(v.Mirrors)
	}
	if v.Full > v.Device {
		out.FullSize = quantity(v.Full)
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
