package eviction

import (
	"fmt"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// thresholds are the policy's thresholds, in bytes of one pool. If volumes that cannot be evicted alone fill a
// pool beyond the low threshold, no eviction can reach it. Then their use counts as the low threshold, and the
// high one is raised by the same amount. Otherwise every volume would be evicted as soon as it is released,
// without relieving the pool.
type thresholds struct {
	high, low volume.Bytes
	raised    bool
}

// policyThresholds returns the thresholds of a pool as the policy says, whether or not evictions can reach them.
func (p *planner) policyThresholds(pool *poolPlan) thresholds {
	return thresholds{high: (pool.Size*volume.Bytes(p.policy.HighPercent) + 99) / 100, low: pool.Size * volume.Bytes(p.policy.LowPercent) / 100}
}

// thresholds returns the thresholds by which volumes are evicted from a pool.
func (p *planner) thresholds(pool *poolPlan) thresholds {
	t := p.policyThresholds(pool)
	if pool.Thin != nil {
		return t // a full thin pool fails, so every eviction helps
	}
	if more := pool.used() - pool.reclaimable() - t.low; more > 0 {
		t.high, t.low, t.raised = t.high+more, t.low+more, true
	}
	return t
}

// reportedThresholds returns the thresholds beyond which a pool has a shortfall.
func (p *planner) reportedThresholds(pool *poolPlan) thresholds {
	if p.needsManualAction(pool) {
		return p.policyThresholds(pool)
	}
	return p.thresholds(pool)
}

// needsManualAction reports whether a problem that needs manual action prevents evictions, or keeps room that was to be
// freed, so that not only volumes in use keep a pool full.
func (p *planner) needsManualAction(pool *poolPlan) bool {
	return p.result.Blocked != "" || pool.problem != "" || len(pool.unfinished) > 0
}

// mayStayFull reports whether a thin pool over its high threshold has no shortfall: nothing hinders evictions, so
// volumes in use fill it, and there is room for all that they may still write. In other pools the threshold is raised
// instead.
func (p *planner) mayStayFull(pool *poolPlan) bool {
	return pool.Thin != nil && !p.needsManualAction(pool) && pool.result.Unwritten <= pool.freeSoon()+pool.Size/thinSlack
}

// evictForThreshold evicts from a pool that is over the high threshold until it reaches the low one.
func (p *planner) evictForThreshold(pool *poolPlan) []Eviction {
	t := p.thresholds(pool)
	if !p.overHigh(pool, t) || len(pool.queue) > 0 && p.postpone(pool) {
		return nil
	}
	return p.evictUntil(pool, pool.used()-t.low, ReasonHighThreshold, p.whyThreshold(pool, t))
}

// overHigh reports whether a pool will be at or over the high threshold after the plan's evictions so far.
func (p *planner) overHigh(pool *poolPlan, t thresholds) bool {
	return p.thresholdsApply(pool) && pool.used() >= t.high
}

// full reports whether this use of a pool is at or over the policy's high threshold.
func (p *planner) full(pool *poolPlan, used volume.Bytes) bool {
	return p.thresholdsApply(pool) && volume.Percent(used, pool.Size) >= p.policy.HighPercent
}

// thresholdsApply reports whether the thresholds apply to a pool. Every volume group of the host is a pool, and one
// without flexlvm's volumes, such as the operating system's, is usually full.
func (p *planner) thresholdsApply(pool *poolPlan) bool {
	return p.policy.HighPercent < 100 && pool.Size > 0 && (len(pool.result.ByState) > 0 || pool.result.Promised > 0)
}

func (p *planner) whyThreshold(pool *poolPlan, t thresholds) string {
	return fmt.Sprintf("%s; %s must be evicted to reach %s", p.describeUse(pool, pool.used()), pool.used()-t.low, p.describeLow(pool, t))
}

// describeLow describes the low threshold.
func (p *planner) describeLow(pool *poolPlan, t thresholds) string {
	if t.raised {
		return fmt.Sprintf("the %d%% that cannot be evicted", volume.Percent(t.low, pool.Size))
	}
	return fmt.Sprintf("the low threshold of %d%%", p.policy.LowPercent)
}

func (p *planner) describeUse(pool *poolPlan, used volume.Bytes) string {
	shown := max(used, min(pool.roundUp(used), pool.Size)) // not more than the pool has because of rounding
	return fmt.Sprintf("pool %s is %d%% full (%s of %s), the high threshold is %d%%",
		pool.Name, volume.Percent(used, pool.Size), shown, pool.Size, p.policy.HighPercent)
}

// excludeAll excludes all volumes of the pool from eviction.
func (p *poolPlan) excludeAll() {
	p.queue, p.replicas = nil, nil
	p.result.DeviceReclaimable = p.reclaimableOn()
}
