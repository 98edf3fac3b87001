package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// HeadroomAuto goes by the maxRecent newest volumes of a pool, if they were created within recentAge.
	maxRecent = 8
	recentAge = 7 * 24 * time.Hour
	// maxAutoPercent is the greatest share of a pool that HeadroomAuto keeps free, in per cent.
	maxAutoPercent = 10
)

// A Headroom is how much of each volume group is kept free for future claims, as far as unreferenced volumes
// can free it. It implements pflag.Value.
type Headroom struct {
	auto    bool
	percent int
	bytes   volume.Bytes
}

// HeadroomAuto keeps free what the most recently created volumes take.
var HeadroomAuto = Headroom{auto: true}

// Set parses the flag's value: auto, bytes such as 10Gi, or a share such as 5%.
func (h *Headroom) Set(s string) error {
	var parsed Headroom
	share, isShare := strings.CutSuffix(s, "%")
	switch {
	case s == "auto":
		parsed.auto = true
	case isShare:
		n, err := strconv.Atoi(share)
		if err != nil || n < 0 || n > 50 {
			return fmt.Errorf("%q is not a share of a pool; give 0%% to 50%%", s)
		}
		parsed.percent = n
	default:
		n, err := parseBytes(s)
		if err != nil {
			return fmt.Errorf("%q is neither auto, nor bytes such as 10Gi, nor a share such as 5%%", s)
		}
		parsed.bytes = n
	}
	*h = parsed
	return nil
}

// parseBytes parses a number of bytes with or without a binary unit.
func parseBytes(s string) (volume.Bytes, error) {
	unit := volume.Bytes(1)
	for i, name := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if number, is := strings.CutSuffix(s, name); is {
			s, unit = number, volume.KiB<<(10*i)
		}
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err == nil && volume.Bytes(n) > volume.MaxCharge/unit {
		err = strconv.ErrRange
	}
	return volume.Bytes(n) * unit, err
}

// String formats the headroom as Set reads it.
func (h *Headroom) String() string {
	switch {
	case h.auto:
		return "auto"
	case h.percent > 0:
		return strconv.Itoa(h.percent) + "%"
	}
	return strconv.FormatInt(int64(h.bytes), 10)
}

// Type returns the flag's type for its help.
func (h *Headroom) Type() string { return "headroom" }

// evictForHeadroom makes room in advance: a pod whose claim finds free room starts as fast as on an empty node.
// It evicts unreferenced volumes only, and promised volumes come first.
func (p *planner) evictForHeadroom(pool *poolPlan) []Eviction {
	if pool.Thin != nil {
		return nil // a thin volume takes its room block by block
	}
	now := pool.roomSoon()
	spare := now.total - pool.goalWithin(pool.demands, now).target
	recent := slices.DeleteFunc(recentVolumes(p.view, pool.Pool), func(v *inventory.Volume) bool { return pool.evicted[v] })
	n := 0
	for ; n < len(pool.queue) && pool.queue[n].State == volume.Unreferenced; n++ {
		v := pool.queue[n]
		if spare >= p.headroom(pool, recent) {
			break
		}
		spare += pool.frees(v)
		recent = slices.DeleteFunc(recent, func(other *inventory.Volume) bool { return other == v })
	}
	// Evicting along with the volumes for promises takes hardly longer, and the next pods find room.
	if n == 0 || !pool.evictsForPromises && p.postpone(pool) {
		return nil
	}
	cause := fmt.Sprintf("pool %s has %s, and %s is kept free for future claims (%s %s)",
		pool.Name, pool.describeRoom(), p.headroom(pool, recent), flagHeadroom, p.policy.Headroom.String())
	return p.evict(pool, slices.Clone(pool.queue[:n]), ReasonHeadroom, cause)
}

// headroom returns how much of a pool is to be free, given its recently created volumes, the newest first.
// Evicted volumes do not count, so the result is the same after the plan has been carried out.
func (p *planner) headroom(pool *poolPlan, recent []*inventory.Volume) volume.Bytes {
	h := p.policy.Headroom
	if !h.auto {
		return max(h.bytes, pool.Size/100*volume.Bytes(h.percent))
	}
	var sum volume.Bytes
	for _, v := range recent[:min(len(recent), maxRecent)] {
		sum += v.Allocated
	}
	return min(sum, maxAutoHeadroom(pool.Pool))
}

// maxAutoHeadroom returns the most that HeadroomAuto keeps free in a pool.
func maxAutoHeadroom(pool inventory.Pool) volume.Bytes { return pool.Size / 100 * maxAutoPercent }

// RecentInUse returns the volumes of a pool by which HeadroomAuto goes, the newest first: those that are not in
// Result.Released, and no more than can make a difference, whatever is created or evicted.
func RecentInUse(view View, pool inventory.Pool) (out []inventory.Volume) {
	var sum volume.Bytes
	for _, v := range recentVolumes(view, pool) {
		if v.State == volume.Unreferenced || v.State == volume.Retained {
			continue
		}
		if len(out) == maxRecent || sum >= maxAutoHeadroom(pool) {
			break
		}
		out = append(out, *v)
		sum += v.Allocated
	}
	return out
}

// recentVolumes returns the recently created volumes of a pool, the newest first, whether or not they are still
// wanted.
func recentVolumes(view View, pool inventory.Pool) []*inventory.Volume {
	var out []*inventory.Volume
	for i := range view.Volumes {
		v := &view.Volumes[i]
		counts := pool.Holds(v) && v.Cluster == view.Cluster && v.State != "" && v.State != volume.Doomed
		if counts && !view.Removing[v.ID()] && v.Kind != volume.Dataset && view.Now.Sub(v.Created) < recentAge {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *inventory.Volume) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}
