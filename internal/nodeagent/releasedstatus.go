package nodeagent

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
)

// Bounds of what the NodeStorage lists of the volumes that were released: what a person may
// want back is among the last, and what goes next is among the first of each pool.
const (
	lastReleased = 40
	firstToGo    = 10
	mostReleased = 100
)

// releasedStatus is what the NodeStorage lists, the newest first.
func releasedStatus(all []eviction.Released) []flexlvmv1.ReleasedVolume {
	newest := slices.Clone(all)
	slices.SortStableFunc(newest, func(a, b eviction.Released) int { return b.Volume.Released.Compare(a.Volume.Released) })
	var out []flexlvmv1.ReleasedVolume
	for i, r := range newest {
		goes := r.Order > 0 && r.Order <= firstToGo
		if (i >= lastReleased && !goes) || len(out) == mostReleased {
			continue
		}
		v := &r.Volume
		out = append(out, flexlvmv1.ReleasedVolume{
			Pool: string(v.Pool()), Name: string(v.Name), State: string(v.State), Namespace: v.Namespace,
			Size: quantity(v.Size), Room: quantity(v.Device), LastUsed: second(v.LastUsed), Released: second(v.Released),
			EvictionOrder: int32(r.Order), Kept: string(r.Kept),
		})
	}
	return out
}

func policyStatus(p eviction.Policy) *flexlvmv1.EvictionPolicy {
	return &flexlvmv1.EvictionPolicy{
		HighThresholdPercent: int32(p.HighPercent), LowThresholdPercent: int32(p.LowPercent),
		MinAge: metav1.Duration{Duration: p.MinAge}, MaxAge: metav1.Duration{Duration: p.MaxAge},
	}
}
