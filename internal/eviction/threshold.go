package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// Thresholds are the policy's, in bytes of one pool. Where what stays in use alone fills a
// pool beyond the low threshold, no eviction can reach that: it counts as the low one then,
// and the high one is as far above it as the policy says. Else every volume that is given
// up would go at once, and bring the pool nowhere.
type thresholds struct {
	high, low volume.Bytes
	raised    bool
}

func (p *planner) thresholds(in *pool) thresholds {
	t := thresholds{high: (in.Size*volume.Bytes(p.policy.HighPercent) + 99) / 100, low: in.Size * volume.Bytes(p.policy.LowPercent) / 100}
	if in.Thin != nil {
		return t // one that runs full fails: every bit counts
	}
	if p.result.Blocked != "" || in.ailing != "" || len(in.unfinished) > 0 {
		return t // it is not use alone that keeps it full, and a person has to look
	}
	if more := in.used() - in.reclaimable() - t.low; more > 0 {
		t.high, t.low, t.raised = t.high+more, t.low+more, true
	}
	return t
}

// evictForThreshold brings a pool that is too full down to the low threshold.
func (p *planner) evictForThreshold(in *pool) []Eviction {
	t := p.thresholds(in)
	if !p.over(in, t) || len(in.queue) > 0 && p.postpone(in) {
		return nil
	}
	return p.take(in, in.used()-t.low, ReasonHighThreshold, p.whyThreshold(in, t))
}

// over reports whether a pool will still be at or over the high threshold.
func (p *planner) over(in *pool, t thresholds) bool {
	return p.watches(in) && in.used() >= t.high
}

// full reports whether so much of a pool is at or over the high threshold of the policy.
func (p *planner) full(in *pool, used volume.Bytes) bool {
	return p.watches(in) && percent(used, in.Size) >= p.policy.HighPercent
}

// watches reports whether the thresholds count for a pool. Every volume group of the host is a pool, and one that
// flexlvm has nothing in, such as the operating system's, is usually full.
func (p *planner) watches(in *pool) bool {
	return p.policy.HighPercent < 100 && in.Size > 0 && (len(in.result.ByState) > 0 || in.result.Promised > 0)
}

func (p *planner) whyThreshold(in *pool, t thresholds) string {
	return fmt.Sprintf("%s; %s must go to reach %s", p.fullness(in, in.used()), in.used()-t.low, p.lowest(in, t))
}

// lowest is the low threshold in words.
func (p *planner) lowest(in *pool, t thresholds) string {
	if t.raised {
		return fmt.Sprintf("the %d%% that volumes in use take", percent(t.low, in.Size))
	}
	return fmt.Sprintf("the low threshold of %d%%", p.policy.LowPercent)
}

func (p *planner) fullness(in *pool, used volume.Bytes) string {
	return fmt.Sprintf("pool %s is %d%% full (%s of %s), the high threshold is %d%%",
		in.Name, percent(used, in.Size), used, in.Size, p.policy.HighPercent)
}

// withhold keeps all that may be evicted from it.
func (p *pool) withhold() {
	p.queue, p.replicas = nil, nil
	p.result.DeviceReclaimable = p.reclaimableOn()
}
