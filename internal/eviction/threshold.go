package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// thresholds are the policy's thresholds, in bytes of one pool. If volumes in use alone fill a pool beyond the
// low threshold, no eviction can reach it. Then their use counts as the low threshold, and the high one is
// raised by the same amount. Otherwise every volume would be evicted as soon as it is released, without
// relieving the pool.
type thresholds struct {
	high, low volume.Bytes
	raised    bool
}

func (p *planner) thresholds(in *pool) thresholds {
	t := thresholds{high: (in.Size*volume.Bytes(p.policy.HighPercent) + 99) / 100, low: in.Size * volume.Bytes(p.policy.LowPercent) / 100}
	if in.Thin != nil {
		return t // a full thin pool fails, so every eviction helps
	}
	if p.hindered(in) {
		return t
	}
	if more := in.used() - in.reclaimable() - t.low; more > 0 {
		t.high, t.low, t.raised = t.high+more, t.low+more, true
	}
	return t
}

// hindered reports whether a problem that needs manual action prevents evictions, so that not only volumes in use keep
// a pool full.
func (p *planner) hindered(in *pool) bool {
	return p.result.Blocked != "" || in.ailing != "" || len(in.unfinished) > 0
}

// mayStayFull reports whether a thin pool over its high threshold has no shortfall: nothing hinders evictions, so
// volumes in use fill it, and there is room for all that they may still write. In other pools the threshold is raised
// instead.
func (p *planner) mayStayFull(in *pool) bool {
	return in.Thin != nil && !p.hindered(in) && in.result.Unwritten <= in.coming()+in.Size/thinSlack
}

// evictForThreshold evicts from a pool that is over the high threshold until it reaches the low one.
func (p *planner) evictForThreshold(in *pool) []Eviction {
	t := p.thresholds(in)
	if !p.over(in, t) || len(in.queue) > 0 && p.postpone(in) {
		return nil
	}
	return p.take(in, in.used()-t.low, ReasonHighThreshold, p.whyThreshold(in, t))
}

// over reports whether a pool will be at or over the high threshold after the plan's evictions so far.
func (p *planner) over(in *pool, t thresholds) bool {
	return p.watches(in) && in.used() >= t.high
}

// full reports whether this use of a pool is at or over the policy's high threshold.
func (p *planner) full(in *pool, used volume.Bytes) bool {
	return p.watches(in) && percent(used, in.Size) >= p.policy.HighPercent
}

// watches reports whether the thresholds apply to a pool. Every volume group of the host is a pool, and one
// without flexlvm's volumes, such as the operating system's, is usually full.
func (p *planner) watches(in *pool) bool {
	return p.policy.HighPercent < 100 && in.Size > 0 && (len(in.result.ByState) > 0 || in.result.Promised > 0)
}

func (p *planner) whyThreshold(in *pool, t thresholds) string {
	return fmt.Sprintf("%s; %s must go to reach %s", p.fullness(in, in.used()), in.used()-t.low, p.lowest(in, t))
}

// lowest describes the low threshold.
func (p *planner) lowest(in *pool, t thresholds) string {
	if t.raised {
		return fmt.Sprintf("the %d%% that volumes in use take", percent(t.low, in.Size))
	}
	return fmt.Sprintf("the low threshold of %d%%", p.policy.LowPercent)
}

func (p *planner) fullness(in *pool, used volume.Bytes) string {
	shown := max(used, min(in.shownUp(used), in.Size)) // not more than the pool has because of rounding
	return fmt.Sprintf("pool %s is %d%% full (%s of %s), the high threshold is %d%%",
		in.Name, percent(used, in.Size), shown, in.Size, p.policy.HighPercent)
}

// withhold excludes all volumes of the pool from eviction.
func (p *pool) withhold() {
	p.queue, p.replicas = nil, nil
	p.result.DeviceReclaimable = p.reclaimableOn()
}
