package eviction

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func volumes(n int) string { return volume.Pluralize(n, "volume", "volumes") }

// ago formats an age. It is not negative, even if the clock was set back.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "at an unknown time"
	}
	return duration.HumanDuration(max(0, now.Sub(then))) + " ago"
}

// of describes a volume with its namespace.
func of(v *inventory.Volume) string {
	if v.Namespace == "" {
		return "volume " + KeyOf(v).String()
	}
	return fmt.Sprintf("volume %s of namespace %s", KeyOf(v), v.Namespace)
}

// idle describes how long a volume has been unused.
func (p *planner) idle(v *inventory.Volume) string {
	return fmt.Sprintf("%s was given up %s and last used %s", of(v), ago(p.view.Now, v.Released), ago(p.view.Now, v.LastUsed))
}

func (p *planner) whyImmediate(v *inventory.Volume) string {
	return fmt.Sprintf("its class says reclaim: immediate; this volume gives back %s: %s", v.Device, p.idle(v))
}

func (p *planner) whyReplica(v *inventory.Volume, c *persistentvolume.Volume) string {
	return fmt.Sprintf("volumes promised on this node needed room, and no pod here used this replica of dataset %s/%s, whose eviction was requested %s, and it gives back %s; it is loaded again where there is room: it was last used %s",
		v.Namespace, c.Replica.Owner, ago(p.view.Now, c.Replica.Asked), v.Device, ago(p.view.Now, v.LastUsed))
}

func (p *planner) whyMaxAge(v *inventory.Volume) string {
	return fmt.Sprintf("nobody has wanted it for longer than %s; this volume gives back %s: %s",
		duration.HumanDuration(p.policy.MaxAge), v.Device, p.idle(v))
}

// whyPromised describes for which volumes room is made.
func (p *pool) whyPromised(g goal, now room) string {
	which := ""
	if served := len(g.served); served < len(p.demands) {
		which = fmt.Sprintf(", of which %d with %s can be served", served, g.target)
	}
	return fmt.Sprintf("%s%s, and pool %s has %s%s", p.promises(), which, p.Name, p.room(), p.narrow(now))
}

// narrow describes which devices have too little room for a demand although the pool has enough in total; empty
// if none.
func (p *pool) narrow(r room) string {
	r = r.clone()
	for _, d := range p.demands {
		if d.need <= r.total && !r.serve(d) {
			return fmt.Sprintf(", but %s needs %s on each of %d devices", d.pv.PV, d.share, d.devices)
		}
	}
	return ""
}

// whyAtOnce describes for which growth room is made.
func (p *pool) whyAtOnce(once volume.Bytes) string {
	return fmt.Sprintf("a volume is promised to grow by %s, which must be free at one moment, and pool %s has %s", once, p.Name, p.room())
}

// promises describes the promised volumes of the pool, the first by name.
func (p *pool) promises() string {
	if len(p.demands) == 0 {
		return "volumes on this node need " + p.overwriting()
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
		also = ", with " + p.overwriting()
	}
	return fmt.Sprintf("%s promised on this node (%s) %s %s%s", volumes(len(p.demands)), whom, verb, p.shownUp(p.result.Promised), also)
}

// room describes the room that is free or about to be.
func (p *pool) room() string {
	out := p.shownDown(p.Free).String() + " free"
	if p.pending > 0 {
		out += fmt.Sprintf(" and %s coming free", p.shownDown(p.pending))
	}
	return out
}

// describe describes an orphan.
func (p *planner) describe(v *inventory.Volume) string {
	return fmt.Sprintf("no PersistentVolume names %s, state %s, %s; it was created %s and last used %s",
		of(v), v.State, v.Size, ago(p.view.Now, v.Created), ago(p.view.Now, v.LastUsed))
}

func (p *planner) whatToDo(v *inventory.Volume) string {
	if by, there := p.index.anywhere[v.Name]; there {
		return fmt.Sprintf("; PersistentVolume %s names a volume of the same name in another volume group", by)
	}
	return fmt.Sprintf("; `flexlvm volumes undelete %s --dry-run` prints a PersistentVolume for it, `flexlvm volumes forget %s` gives it up", v.Name, v.Name)
}

// notePressure sets whether a pool is under pressure, before any evictions.
func (p *planner) notePressure(in *pool) {
	used := max(0, in.Size-in.Free)
	in.result.UsedPercent = percent(used, in.Size)
	var why []string
	if p.full(in, used) {
		why = append(why, p.fullness(in, used))
	}
	free := room{in.Free, freeOn(in.Pool)}
	if narrow := in.narrow(free); narrow != "" || in.result.Promised > in.Free {
		why = append(why, fmt.Sprintf("%s, and pool %s has %s%s", in.promises(), in.Name, in.room(), narrow))
	}
	if full := p.thinMetadataFull(in); full != "" {
		why = append(why, full)
	}
	in.result.Pressure = len(why) > 0
	in.result.PressureMessage = strings.Join(why, "; ")
}

// reportShortfall sets what is still missing after the plan, and the advice for it.
func (p *planner) reportShortfall(in *pool) {
	var why []string
	in.result.Waiting = in.waiting()
	reach := in.coming() + in.reclaimable()
	if missing := in.result.Promised - reach; missing > 0 {
		in.result.Shortfall = missing
		why = append(why, fmt.Sprintf("%s, and pool %s can give %s: %s is missing", in.promises(), in.Name, in.shownDown(reach), in.shownUp(missing)))
	} else if lacking, narrow := in.lacking(); lacking > 0 {
		in.result.Shortfall = lacking
		why = append(why, fmt.Sprintf("%s, and pool %s can give %s%s: %s is missing there", in.promises(), in.Name, in.shownDown(reach), narrow, in.shownUp(lacking)))
	}
	if t := p.thresholds(in); p.over(in, t) && !p.mayStayFull(in) {
		if excess := in.used() - t.low; !in.putOff {
			in.result.Shortfall = max(in.result.Shortfall, excess)
			why = append(why, fmt.Sprintf("%s, and nothing more may be evicted: %s too much for %s", p.fullness(in, in.used()), in.shownUp(excess), p.lowest(in, t)))
		}
	} else if p.full(in, in.used()) {
		full := []string{p.fullness(in, in.used()) + ", and volumes in use fill it beyond the low one"}
		in.result.InUseMessage = strings.Join(append(full, p.outlook(in)...), "; ")
	}
	if len(why) == 0 {
		return
	}
	why = append(why, p.outlook(in)...)
	in.result.ShortfallMessage = strings.Join(why, "; ")
}

// lacking returns what demands lack on their devices even after all possible evictions, and describes the first
// one.
func (p *pool) lacking() (sum volume.Bytes, narrow string) {
	left := p.comingRoom().with(p.queue)
	narrow = p.narrow(left)
	for _, d := range p.demands {
		if !left.serve(d) {
			sum += left.lacks(d)
		}
	}
	return sum, narrow
}

// outlook describes what prevents more room, and what a person can do.
func (p *planner) outlook(in *pool) (out []string) {
	if p.result.Blocked != "" {
		return []string{p.result.Blocked}
	}
	if in.ailing != "" {
		out = append(out, "nothing is evicted from it: "+in.ailing)
	}
	if n := len(in.unfinished); n > 0 {
		first := slices.MinFunc(in.unfinished, func(a, b *inventory.Volume) int { return byName(*a, *b) })
		text := fmt.Sprintf("%s could not be removed (%s: %s)", volume.Pluralize(n, "volume that was given up", "volumes that were given up"), KeyOf(first), first.Problem)
		if in.stalled() {
			text += ", so no more are given up for their room until that is corrected"
		}
		out = append(out, text)
	}
	for _, h := range []struct {
		standing standing
		what     string
	}{
		{standingYoung, fmt.Sprintf("may go once unreferenced for %s", duration.HumanDuration(p.policy.MinAge))},
		{standingBusy, "cannot go while in use"},
		{standingWanted, "cannot go while a PersistentVolume names it"},
		{standingIll, "cannot be evicted because of a problem that needs manual action"},
	} {
		if a := in.held[h.standing]; a.volumes > 0 {
			out = append(out, fmt.Sprintf("%s in %s %s", in.shownUp(a.bytes), volume.Pluralize(a.volumes, "unreferenced volume", "unreferenced volumes"), h.what))
		}
	}
	if in.kept.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s cannot go: in use, incomplete, too young, or kept by their policy", in.shownUp(in.kept.bytes), volume.Pluralize(in.kept.volumes, "replica of a dataset", "replicas of datasets")))
	}
	if in.stuck.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s were given up long ago, and their claims are still there: see their VolumeManager", in.shownUp(in.stuck.bytes), volume.Pluralize(in.stuck.volumes, "replica of a dataset", "replicas of datasets")))
	}
	if in.orphaned.volumes > 0 {
		out = append(out, fmt.Sprintf("%s in %s without a PersistentVolume: look at them with `flexlvm volumes list`", in.shownUp(in.orphaned.bytes), volumes(in.orphaned.volumes)))
	}
	if in.Thin != nil {
		return append(out, fmt.Sprintf("extend thin pool %s (lvextend), or delete claims that nobody needs", in.Name))
	}
	if in.Directories != nil {
		return append(out, fmt.Sprintf("enlarge directory pool %s (`flexlvm directories create`), or delete claims that nobody needs", in.Name))
	}
	return append(out, fmt.Sprintf("extend volume group %s (`vgextend --metadatasize 16m %s DEVICE`), or delete claims that nobody needs", in.Name, in.Name))
}
