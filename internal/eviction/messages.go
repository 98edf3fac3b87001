package eviction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func countVolumes(n int) string { return volume.Pluralize(n, "volume", "volumes") }

// ago formats an age. It is not negative, even if the clock was set back.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "at an unknown time"
	}
	return duration.HumanDuration(max(0, now.Sub(then))) + " ago"
}

// describeVolume describes a volume with its namespace.
func describeVolume(v *inventory.Volume) string {
	if v.Namespace == "" {
		return "volume " + KeyOf(v).String()
	}
	return fmt.Sprintf("volume %s of namespace %s", KeyOf(v), v.Namespace)
}

// describeIdle describes how long a volume has been unused.
func (p *planner) describeIdle(v *inventory.Volume) string {
	return fmt.Sprintf("%s was given up %s and last used %s", describeVolume(v), ago(p.view.Now, v.Released), ago(p.view.Now, v.LastUsed))
}

func (p *planner) whyImmediate(v *inventory.Volume) string {
	return fmt.Sprintf("its class says reclaim: immediate; evicting it frees %s: %s", v.Allocated, p.describeIdle(v))
}

func (p *planner) whyReplica(v *inventory.Volume, c *persistentvolume.Volume) string {
	return fmt.Sprintf("volumes promised on this node needed room, and no pod here used this replica of dataset %s/%s, whose eviction was requested %s, and evicting it frees %s; it is loaded again where there is room: it was last used %s",
		v.Namespace, c.Replica.Owner, ago(p.view.Now, c.Replica.Asked), v.Allocated, ago(p.view.Now, v.LastUsed))
}

func (p *planner) whyMaxAge(v *inventory.Volume) string {
	return fmt.Sprintf("nobody has wanted it for longer than %s; evicting it frees %s: %s",
		duration.HumanDuration(p.policy.MaxAge), v.Allocated, p.describeIdle(v))
}

// whyPromised describes for which volumes room is made.
func (p *poolPlan) whyPromised(g goal, now room) string {
	which := ""
	if served := len(g.served); served < len(p.demands) {
		which = fmt.Sprintf(", of which %d with %s can be served", served, g.target)
	}
	return fmt.Sprintf("%s%s, and pool %s has %s%s", p.describePromises(), which, p.Name, p.describeRoom(), p.deviceShortage(now))
}

// deviceShortage describes which devices have too little room for a demand although the pool has enough in total; empty
// if none.
func (p *poolPlan) deviceShortage(r room) string {
	r = r.clone()
	for _, d := range p.demands {
		if d.need <= r.total && !r.allocate(d) {
			return fmt.Sprintf(", but %s needs %s on each of %d devices", d.pv.PV, d.share, d.devices)
		}
	}
	return ""
}

// whyThinGrowth describes for which growth room is made.
func (p *poolPlan) whyThinGrowth(growth volume.Bytes) string {
	return fmt.Sprintf("a volume is promised to grow by %s, which must be free at one moment, and pool %s has %s", growth, p.Name, p.describeRoom())
}

// describePromises describes the promised volumes of the pool, the first by name.
func (p *poolPlan) describePromises() string {
	if len(p.demands) == 0 {
		return "volumes on this node need " + p.describeOverwriting()
	}
	first := p.demands[0].pv
	verb := "needs"
	if len(p.demands) > 1 {
		verb = "need"
	}
	whom := fmt.Sprintf("%s for %s", first.PV, first.User())
	if n := len(p.demands) - 1; n > 0 {
		whom += fmt.Sprintf(" and %d more", n)
	}
	also := ""
	if p.shared > 0 {
		also = ", with " + p.describeOverwriting()
	}
	return fmt.Sprintf("%s promised on this node (%s) %s %s%s", countVolumes(len(p.demands)), whom, verb, p.roundUp(p.result.Promised), also)
}

// describeRoom describes the room that is free or about to be.
func (p *poolPlan) describeRoom() string {
	out := p.roundDown(freeToAllocate(p.Pool)).String() + " free"
	if p.pending > 0 {
		out += fmt.Sprintf(" and %s about to be free", p.roundDown(p.pending))
	}
	return out
}

// describeOrphan describes an orphan.
func (p *planner) describeOrphan(v *inventory.Volume) string {
	return fmt.Sprintf("no PersistentVolume names %s, state %s, %s; it was created %s and last used %s",
		describeVolume(v), v.State, v.Size, ago(p.view.Now, v.Created), ago(p.view.Now, v.LastUsed))
}

func (p *planner) orphanAdvice(v *inventory.Volume) string {
	if by, there := p.index.wantedByName[v.Name]; there {
		return fmt.Sprintf("; PersistentVolume %s names a volume of the same name in another volume group", by)
	}
	if command := undelete.Command(*v); command != "" {
		return fmt.Sprintf("; `%s --dry-run` prints a PersistentVolume for it, `flexlvm volumes forget %s` gives it up", command, v.Name)
	}
	return fmt.Sprintf("; `flexlvm volumes forget %s` gives it up", v.Name)
}

// setPressure sets whether a pool is under pressure, before any evictions.
func (p *planner) setPressure(pool *poolPlan) {
	used := max(0, pool.Size-pool.Free)
	pool.result.UsedPercent = volume.Percent(used, pool.Size)
	var why []string
	if p.full(pool, used) {
		why = append(why, p.describeUse(pool, used))
	}
	free := room{freeToAllocate(pool.Pool), freeOn(pool.Pool)}
	if shortage := pool.deviceShortage(free); shortage != "" || pool.result.Promised > free.total {
		why = append(why, fmt.Sprintf("%s, and pool %s has %s%s", pool.describePromises(), pool.Name, pool.describeRoom(), shortage))
	}
	if full := p.thinMetadataFull(pool); full != "" {
		why = append(why, full)
	}
	pool.result.Pressure = len(why) > 0
	pool.result.PressureMessage = strings.Join(why, "; ")
}

// setShortfall sets what is still missing after the plan, and the advice for it.
func (p *planner) setShortfall(pool *poolPlan) {
	var why []string
	pool.result.Waiting = pool.waiting()
	reach := pool.allocatableSoon() + pool.reclaimable()
	if missing := pool.result.Promised - reach; missing > 0 {
		pool.result.Shortfall = missing
		why = append(why, fmt.Sprintf("%s, and pool %s can give %s: %s is missing", pool.describePromises(), pool.Name, pool.roundDown(reach), pool.roundUp(missing)))
	} else if shortfall, shortage := pool.deviceShortfall(); shortfall > 0 {
		pool.result.Shortfall = shortfall
		why = append(why, fmt.Sprintf("%s, and pool %s can give %s%s: %s is missing there", pool.describePromises(), pool.Name, pool.roundDown(reach), shortage, pool.roundUp(shortfall)))
	}
	if t := p.reportedThresholds(pool); p.overHigh(pool, t) && !p.mayStayFull(pool) {
		if excess := pool.used() - pool.reclaimable() - t.low; !pool.postponed {
			pool.result.Shortfall = max(pool.result.Shortfall, excess)
			why = append(why, p.whyExcess(pool, excess, t))
		}
	} else if p.full(pool, pool.used()) {
		full := []string{p.describeUse(pool, pool.used()) + ", and volumes in use fill it beyond the low one"}
		pool.result.InUseMessage = strings.Join(append(full, p.advice(pool)...), "; ")
	}
	if len(why) == 0 {
		p.setStalled(pool)
		return
	}
	why = append(why, p.advice(pool)...)
	pool.result.ShortfallMessage = strings.Join(why, "; ")
}

// setStalled sets why the room of evictable volumes is not offered to claims. A claim that waits for that room is
// promised nothing, so the pool has no shortfall.
func (p *planner) setStalled(pool *poolPlan) {
	if pool.withheld.volumes == 0 {
		return
	}
	held := fmt.Sprintf("%s in %s could be evicted from pool %s, but claims are not offered that room",
		pool.roundUp(pool.withheld.bytes), countVolumes(pool.withheld.volumes), pool.Name)
	pool.result.StalledMessage = strings.Join(append([]string{held}, p.advice(pool)...), "; ")
}

// whyExcess describes that no eviction can reach the low threshold.
func (p *planner) whyExcess(pool *poolPlan, excess volume.Bytes, t thresholds) string {
	evicted := "nothing more may be evicted:"
	if len(pool.queue) > 0 {
		evicted = "evicting all that may be evicted would leave"
	}
	return fmt.Sprintf("%s, and %s %s too much for %s", p.describeUse(pool, pool.used()), evicted, pool.roundUp(excess), p.describeLow(pool, t))
}

// deviceShortfall returns what demands lack on their devices even after all possible evictions, and describes the first
// one.
func (p *poolPlan) deviceShortfall() (sum volume.Bytes, shortage string) {
	left := p.roomSoon().with(p.queue)
	shortage = p.deviceShortage(left)
	for _, d := range p.demands {
		if !left.allocate(d) {
			sum += left.shortfallOf(d)
		}
	}
	return sum, shortage
}

// describeUnfinished describes the failed removals, of which there is at least one.
func (p *poolPlan) describeUnfinished() string {
	first := slices.MinFunc(p.unfinished, func(a, b *inventory.Volume) int { return byName(*a, *b) })
	return fmt.Sprintf("%s could not be removed (%s: %s)",
		volume.Pluralize(len(p.unfinished), "volume that was given up", "volumes that were given up"), KeyOf(first), first.Problem)
}

// advice describes what prevents more room, and what a person can do.
func (p *planner) advice(pool *poolPlan) (out []string) {
	if p.result.Blocked != "" {
		return []string{p.result.Blocked}
	}
	if pool.problem != "" {
		out = append(out, "nothing is evicted from it: "+pool.problem)
	}
	if len(pool.unfinished) > 0 {
		text := pool.describeUnfinished()
		if pool.stalled() {
			text += ", so no more are given up for their room until that is corrected"
		}
		out = append(out, text)
	}
	for _, h := range []struct {
		kept Kept
		what string
	}{
		{KeptTooYoung, fmt.Sprintf("may be evicted once unreferenced for %s", duration.HumanDuration(p.policy.MinAge))},
		{KeptInUse, "cannot be evicted while in use"},
		{KeptWanted, "cannot be evicted while a PersistentVolume names it"},
		{KeptProblem, "cannot be evicted because of a problem that needs manual action"},
	} {
		if a := pool.keptUnreferenced[h.kept]; a != nil {
			out = append(out, fmt.Sprintf("%s in %s %s", pool.roundUp(a.bytes), volume.Pluralize(a.volumes, "unreferenced volume", "unreferenced volumes"), h.what))
		}
	}
	if pool.keptReplicas.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s cannot be evicted: in use, incomplete, too young, or kept by their policy", pool.roundUp(pool.keptReplicas.bytes), volume.Pluralize(pool.keptReplicas.volumes, "replica of a dataset", "replicas of datasets")))
	}
	if pool.stuckReplicas.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s were given up long ago, and their claims are still there: see their VolumeManager", pool.roundUp(pool.stuckReplicas.bytes), volume.Pluralize(pool.stuckReplicas.volumes, "replica of a dataset", "replicas of datasets")))
	}
	if pool.orphaned.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s without a PersistentVolume: look at them with `flexlvm volumes list`", pool.roundUp(pool.orphaned.bytes), countVolumes(pool.orphaned.volumes)))
	}
	if pool.Thin != nil {
		return append(out, fmt.Sprintf("extend thin pool %s (lvextend), or delete claims that nobody needs", pool.Name))
	}
	if pool.Directories != nil {
		return append(out, fmt.Sprintf("enlarge directory pool %s (`%s`), or delete claims that nobody needs", pool.Name, pool.Name.CreateCommand()))
	}
	return append(out, fmt.Sprintf("extend volume group %s (`vgextend --metadatasize 16m %s DEVICE`), or delete claims that nobody needs", pool.Name, pool.Name))
}
