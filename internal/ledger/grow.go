package ledger

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Outcome is the current decision on a volume's growth.
type Outcome string

// The outcomes.
const (
	// Refused: the growth is impossible, whatever room is made.
	Refused Outcome = "Refused"
	// Waiting: there is no room, evictions would not free enough, and nothing is promised.
	Waiting Outcome = "Waiting"
	// MakingRoom: the growth is promised, and the node evicts as much as it needs.
	MakingRoom Outcome = "MakingRoom"
	// Granted: the growth is promised, and the room is free.
	Granted Outcome = "Granted"
)

// Promised reports whether the room is reserved.
func (o Outcome) Promised() bool { return o == MakingRoom || o == Granted }

// An Answer is the decision on a growth, with the reason in words and numbers.
type Answer struct {
	Outcome Outcome
	Why     string
	// RoomUnknown: the growth is Waiting because its node or its pool takes no promises now, whether or not there is
	// room. An earlier promise of it need not be withdrawn.
	RoomUnknown bool
}

// A growth is room that is promised to a PersistentVolume but not yet seen on the object.
type growth struct {
	charge
	// base is the resourceVersion on which the growth is to be written. The write is conditional on it,
	// so once there is a later version, the write has succeeded or never will.
	base uint64
	// unsure: a write was started, and whether it succeeded, or will, is unknown.
	unsure bool
}

func (l *Ledger) growth(name string) (growth, bool) {
	label, there := l.where[name]
	if !there {
		return growth{}, false
	}
	grows, growing := l.accounts[label].growths[name]
	return grows, growing
}

// Grow requests that the volume of a PersistentVolume, read from the API server, grow to a size. A
// promise is kept until the caller has written the object and recorded that (Written), even if the
// caller never learns whether the write succeeded. An earlier promise, too, is lowered only by a write.
//
// Nothing is promised that evictions cannot free: a thin pool must have the whole increase free at the
// same time, and layouts of several devices need their share on each.
func (l *Ledger) Grow(object *corev1.PersistentVolume, to volume.Bytes) Answer {
	l.mu.Lock()
	touched := l.writtenLocked(object)
	answer, c := l.judgeGrowth(object, to)
	if name := object.Name; answer.Outcome.Promised() && l.written(name) {
		label := l.where[name]
		now := growth{charge: c, base: versionOf(object)}
		before, growing := l.growth(name)
		// An earlier promise on the same version may still be written.
		if !growing || before.base != now.base || before.Device < now.Device {
			now.unsure = before.unsure && before.base == now.base
			l.accounts[label].growths[name] = now
			touched = append(touched, label)
		}
	}
	l.mu.Unlock()
	for _, label := range touched {
		l.changed(label)
	}
	return answer
}

// NotWritten releases the promise to a PersistentVolume, as the caller saw it, that was not written:
// the API server has refused the write, or it was not sent.
func (l *Ledger) NotWritten(object *corev1.PersistentVolume) {
	l.mu.Lock()
	label := ""
	if grows, growing := l.growth(object.Name); growing && !grows.unsure && grows.base == versionOf(object) {
		label = l.where[object.Name]
		delete(l.accounts[label].growths, object.Name)
	}
	l.mu.Unlock()
	if label != "" {
		l.changed(label)
	}
}

// Unsure records that a promise's write was sent, and that its result is unknown. The promise stays
// until there is a later version of the object.
func (l *Ledger) Unsure(object *corev1.PersistentVolume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if grows, growing := l.growth(object.Name); growing {
		grows.unsure = true
		l.accounts[l.where[object.Name]].growths[object.Name] = grows
	}
}

// keptTime is how long the room of a growth that is taken back stays reserved: a call that started
// before may still grow the volume. The longest, the FlexVolume driver's, ends after 3:10 minutes, and
// the node charges the PersistentVolume in its next round, within 1:12 minutes with the default
// --interval.
const keptTime = 5 * time.Minute

// keptFor returns the name of the reservation for a PersistentVolume's taken-back growth.
func keptFor(name string) string { return name + " (its growth)" }

// Keep reserves the room of a growth that is about to be taken back. For keptTime, the reservation
// grows by as much as the PersistentVolume's charge falls, and shrinks as the charge rises again
// (keepRest). What the pool lacks is not reserved: other growths would be taken back for it, too.
func (l *Ledger) Keep(object *corev1.PersistentVolume) {
	v, err := persistentvolume.Parse(object)
	if err != nil {
		return // Written charges as much as can be read of it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c, label, name := chargeOf(v), object.Labels[pv.LabelNode], keptFor(object.Name)
	a := l.account(label)
	kept := reservation{charge: charge{in: c.in, uuid: c.uuid}, until: l.now().Add(keptTime)}
	if before, there := a.reserved[name]; there && l.now().Before(before.until) {
		kept.charge = before.charge
	}
	if p, there := a.pools[c.in]; there {
		kept.lack = max(0, -l.leftOfStaying(a, c.in, p))
	}
	l.reserveFor(label, name, kept)
}

// keepRest keeps the sum of a PersistentVolume's charge and its reservation by Keep constant, apart from what the
// pool lacked.
func (a *account) keepRest(name string, before, now charge) {
	if r, there := a.reserved[keptFor(name)]; there {
		extent := ExtentOf(now.in, a.pools[now.in].extent)
		more := before.In(extent) - now.In(extent)
		lacked := max(0, min(more, r.lack))
		r.lack -= lacked
		r.Noted = max(0, r.Noted+more-lacked)
		a.reserved[keptFor(name)] = r
	}
}

// MayGrow returns the answer that Grow would return, and promises nothing.
func (l *Ledger) MayGrow(object *corev1.PersistentVolume, to volume.Bytes) Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer, _ := l.judgeGrowth(object, to)
	return answer
}

// Holds reports whether object's pool can hold all promises in it, including object's; true if the node
// has not reported the pool. The charges of PersistentVolumes that are being removed do not count, because their
// node may have subtracted their volumes already: no promise may be withdrawn only because a release takes long.
func (l *Ledger) Holds(object *corev1.PersistentVolume) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := persistentvolume.Parse(object)
	if err != nil {
		return false
	}
	a, there := l.accounts[object.Labels[pv.LabelNode]]
	if !there {
		return true
	}
	p, there := a.pools[v.Pool()]
	if !there || chargeOf(v).from(v.Pool(), p) == 0 {
		return true
	}
	left := l.leftOfStaying(a, v.Pool(), p)
	if v.Shape.Layout == volume.Thin {
		left += 2 * volume.ThinStep(p.size) // a node reports up to this much too little
	}
	return left >= 0
}

// An extension is a growth in the numbers of its pool.
type extension struct {
	v    persistentvolume.Volume // the volume with its current size, and without promises
	to   persistentvolume.Volume
	in   volume.PoolName
	more volume.Bytes // the additional charge
	left volume.Bytes // room that the pool can promise, not counting this growth
	// removing is charged to PersistentVolumes that are being removed, in addition to left.
	removing volume.Bytes
	// spread is that of all promises in the pool, including this volume.
	spread spread
	// promised is the promised size that the object records; 0 for none.
	promised volume.Bytes
}

func (l *Ledger) judgeGrowth(object *corev1.PersistentVolume, size volume.Bytes) (Answer, charge) {
	v, err := persistentvolume.Parse(object)
	if err != nil {
		return roomUnknown("%v", err), charge{}
	}
	label, in := object.Labels[pv.LabelNode], v.Pool()
	a, there := l.accounts[label]
	if !there || a.node == "" {
		return roomUnknown("node %q has not reported its volume groups; check `kubectl get nodestorages` and the pod of DaemonSet flexlvm-gc there", label), charge{}
	}
	p, there := a.pools[in]
	unread := a.unread()
	switch {
	case unread != "":
		return roomUnknown("node %q %s", a.node, unreadable(unread)), charge{}
	case !there:
		return roomUnknown("node %q has no %s %q; it has %s", a.node, in.Noun(), in, named(a.pools)), charge{}
	case v.GroupUUID != "" && v.GroupUUID != p.uuid:
		return roomUnknown("volume group %q on node %q is not the one that the volume was made in, so the volume is not there to grow", in.Group(), a.node), charge{}
	}
	if n := a.snapshotsOf(v.Group, v.Volume); n > 0 && size > v.Size {
		return Answer{Outcome: Waiting, Why: fmt.Sprintf("it has %s with a store of its own, and LVM extends no volume in use that has such; delete the VolumeSnapshots, and it grows once they are gone", volume.Pluralize(n, "snapshot", "snapshots"))}, charge{}
	}
	e := extension{v: v.Grown(v.Size), to: v.Grown(size), in: in, promised: v.Growing, spread: a.spread(in, p)}
	e.more = e.to.Charge().In(p.extent) - e.v.Charge().In(p.extent)
	e.left = l.left(a, in, p) + a.taken(v.PV, l.entry(v.PV).charge(), in, p) - e.v.Charge().In(p.extent)
	e.left += a.reserved[keptFor(v.PV)].from(in, p)
	e.removing = a.removing(in, p)
	if v.Kind == volume.Dataset {
		e.left -= p.replicas // replicas do not evict each other
	}
	answer := e.judge(p)
	if answer.Outcome.Promised() {
		return answer, chargeOf(e.to)
	}
	return answer, charge{}
}

// roomUnknown returns the answer to a growth that waits, whether or not there is room.
func roomUnknown(format string, args ...any) Answer {
	return Answer{Outcome: Waiting, Why: fmt.Sprintf(format, args...), RoomUnknown: true}
}

// snapshotsOf counts the copy-on-write snapshots of a volume, including reserved ones.
func (a *account) snapshotsOf(g volume.Group, n volume.Name) (count int) {
	is := func(c charge) bool { return c.of == n && c.in.Group() == g }
	for _, e := range a.written {
		if is(e.charge()) {
			count++
		}
	}
	for _, r := range a.reserved {
		if is(r.charge) {
			count++
		}
	}
	return count
}

// judge decides about a growth in a pool that the node reports.
func (e extension) judge(p pool) Answer {
	if why := e.never(p); why != "" {
		return Answer{Outcome: Refused, Why: why}
	}
	switch {
	case p.closed != "":
		return roomUnknown("nothing more is promised in %s %q: %s", e.in.Noun(), e.in, p.closed)
	case e.more <= 0:
		return Answer{Outcome: Granted, Why: "the volume is charged that much already"}
	case e.more > e.left && e.promised >= e.to.Size && e.more <= e.left+e.removing:
		return e.makingRoom(p, e.more) // the promise stays until the release of the others is over
	case e.more > e.left:
		return Answer{Outcome: Waiting, Why: fmt.Sprintf("%s more are needed and %s %q can still promise %s", AmountOf(e.more), e.in.Noun(), e.in, AmountOf(max(0, e.left)))}
	case e.v.Shape.Layout == volume.Thin:
		return e.judgeThin(p)
	case e.v.Shape.Devices() > 1:
		return e.judgeDevices(p)
	}
	// If the node already knows this promise, its report includes it.
	known := e.promised >= e.to.Size && p.promised >= e.more && p.unused >= p.promised
	if e.more <= p.unused && (known || e.more <= e.left-p.reclaimable-p.removing) {
		return e.granted()
	}
	return e.makingRoom(p, e.more)
}

// never returns why a pool can never hold the volume, or "".
func (e extension) never(p pool) string {
	if e.to.Size > volume.MaxSize {
		return fmt.Sprintf("%s are asked for, and the most that is supported is %s", AmountOf(e.to.Size), volume.MaxSize)
	}
	if whole := e.to.Charge().In(p.extent); whole > p.size {
		return fmt.Sprintf("a volume of %s takes %s, and all of %s %q is %s", AmountOf(e.to.Size), AmountOf(whole), e.in.Noun(), e.in, AmountOf(p.size))
	}
	if e.v.Shape.Layout == volume.Thin && e.atOnce() > p.size {
		return fmt.Sprintf("a volume can grow by no more than %s %q holds at one moment: it would grow by %s, and all of the pool is %s", e.in.Noun(), e.in, AmountOf(e.atOnce()), AmountOf(p.size))
	}
	return ""
}

// atOnce returns by how much the device grows.
func (e extension) atOnce() volume.Bytes {
	return e.v.DeviceSize(e.to.Size) - e.v.DeviceSize(e.v.Size)
}

// judgeThin decides in a thin pool whose promises permit the growth: the whole increase must be, or
// become, free at the same time.
func (e extension) judgeThin(p pool) Answer {
	needed, available := e.atOnce(), p.unused+p.removing+p.reclaimable-p.replicas
	switch {
	case needed <= p.unused:
		return e.granted()
	case needed <= available:
		return e.makingRoom(p, needed)
	}
	return Answer{Outcome: Waiting, Why: fmt.Sprintf("%s must be free at one moment in %s %q, where %s are, and %s may be evicted", AmountOf(needed), e.in.Noun(), e.in, AmountOf(p.unused), AmountOf(p.reclaimable-p.replicas))}
}

// judgeDevices decides for a layout of several devices, each of which must have its share free.
func (e extension) judgeDevices(p pool) Answer {
	share := e.v.Shape.Share(e.v.DeviceSize(e.to.Size), p.extent) - e.v.Shape.Share(e.v.DeviceSize(e.v.Size), p.extent)
	wide := func(free []volume.Bytes) (n int) {
		for _, f := range free {
			if f-f%p.extent >= share {
				n++
			}
		}
		return n
	}
	free := wide(p.free(promise{e.left, p.size, e.spread})) // without evictions
	if free >= e.v.Shape.Devices() {
		return e.granted()
	}
	// Copies grow on their own devices. Which devices a volume uses is known only if it uses all of the
	// pool's.
	known := e.v.Shape.Layout != volume.Raid1 || len(p.devices) == e.v.Shape.Devices()
	if known && wide(p.free(promise{e.left, p.replicas, e.spread})) >= e.v.Shape.Devices() {
		return e.makingRoom(p, e.more)
	}
	return Answer{Outcome: Waiting, Why: fmt.Sprintf("layout %s needs %s more on each of %d devices, and %s %q, of %s, has so much free on %d",
		e.v.Shape.Layout, AmountOf(share), e.v.Shape.Devices(), e.in.Noun(), e.in, volume.Pluralize(len(p.devices), "device", "devices"), free)}
}

func (e extension) granted() Answer {
	return Answer{Outcome: Granted, Why: fmt.Sprintf("%s more are reserved in %s %q", AmountOf(e.more), e.in.Noun(), e.in)}
}

func (e extension) makingRoom(p pool, need volume.Bytes) Answer {
	return Answer{Outcome: MakingRoom, Why: fmt.Sprintf("%s more are needed and kept for it; in %s %q %s are free, for this and what is promised to others, and %s may be evicted",
		AmountOf(need), e.in.Noun(), e.in, AmountOf(p.unused), AmountOf(p.reclaimable))}
}
