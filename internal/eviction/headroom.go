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
	// HeadroomAuto goes by the lastMade volumes of a pool that were made last, and within
	// recent.
	lastMade = 8
	recent   = 7 * 24 * time.Hour
	// mostAuto is the greatest share of a pool that HeadroomAuto keeps free, in per cent.
	mostAuto = 10
)

// A Headroom is how much of each volume group is kept free for claims that are still to
// come, as far as unreferenced volumes can give it. It implements pflag.Value.
type Headroom struct {
	auto    bool
	percent int
	bytes   volume.Bytes
}

// HeadroomAuto keeps as much as the volumes take that were made last.
var HeadroomAuto = Headroom{auto: true}

// Set parses what the flag may say: auto, bytes such as 10Gi, or a share such as 5%.
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

// parseBytes reads a number of bytes with a binary unit, or without one.
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

// Type is the flag's type in its help.
func (h *Headroom) Type() string { return "headroom" }

// evictForHeadroom makes room before anybody needs it: a pod whose claim finds its room
// free starts as on an empty node. It takes unreferenced volumes alone, and what is
// promised already comes first.
func (p *planner) evictForHeadroom(in *pool) []Eviction {
	if in.Thin != nil {
		return nil // there a volume takes its room bit by bit
	}
	now := in.comingRoom()
	spare := now.total - in.goalWithin(in.demands, now).target
	made := slices.DeleteFunc(madeLately(p.view, in.Pool), func(v *inventory.Volume) bool { return in.evicted[v] })
	n := 0
	for ; n < len(in.queue) && in.queue[n].State == volume.Unreferenced; n++ {
		v := in.queue[n]
		if spare >= p.headroom(in, made) {
			break
		}
		spare += v.Device
		made = slices.DeleteFunc(made, func(other *inventory.Volume) bool { return other == v })
	}
	// With what goes for promises it takes hardly longer, and those that start next find room.
	if n == 0 || !in.promising && p.postpone(in) {
		return nil
	}
	cause := fmt.Sprintf("pool %s has %s, and %s is kept free for claims to come (%s %s)",
		in.Name, in.room(), p.headroom(in, made), flagHeadroom, p.policy.Headroom.String())
	return p.evict(in, slices.Clone(in.queue[:n]), ReasonHeadroom, cause)
}

// headroom is how much of a pool is to be free, where these volumes were made lately, the
// last first. A volume that is evicted counts no more: so it is the same when the plan
// has been carried out.
func (p *planner) headroom(in *pool, made []*inventory.Volume) volume.Bytes {
	h := p.policy.Headroom
	if !h.auto {
		return max(h.bytes, in.Size/100*volume.Bytes(h.percent))
	}
	var sum volume.Bytes
	for _, v := range made[:min(len(made), lastMade)] {
		sum += v.Device
	}
	return min(sum, mostKept(in.Pool))
}

// mostKept is the most that HeadroomAuto keeps free in a pool.
func mostKept(in inventory.Pool) volume.Bytes { return in.Size / 100 * mostAuto }

// RecentInUse are the volumes of a pool by which HeadroomAuto goes, the last one made first:
// those that Result.Released does not have, and no more than make a difference, whatever is
// made or evicted.
func RecentInUse(view View, in inventory.Pool) (out []inventory.Volume) {
	var sum volume.Bytes
	for _, v := range madeLately(view, in) {
		if v.State == volume.Unreferenced || v.State == volume.Retained {
			continue
		}
		if len(out) == lastMade || sum >= mostKept(in) {
			break
		}
		out = append(out, *v)
		sum += v.Device
	}
	return out
}

// madeLately returns the volumes of a pool that were made recently, the newest first, whether or not they
// are still wanted.
func madeLately(view View, in inventory.Pool) []*inventory.Volume {
	var out []*inventory.Volume
	for i := range view.Volumes {
		v := &view.Volumes[i]
		ours := in.Holds(v) && v.Cluster == view.Cluster && v.State != "" && v.State != volume.Doomed
		if ours && !view.Removing[v.UUID] && v.Kind != volume.Dataset && view.Now.Sub(v.Created) < recent {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *inventory.Volume) int {
		return cmp.Or(b.Created.Compare(a.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}
