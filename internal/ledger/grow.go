package ledger

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// An Outcome is what becomes of a volume's growth for now.
type Outcome string

// The outcomes.
const (
	// Refused: it can never be, however much room is made.
	Refused Outcome = "Refused"
	// Waiting: there is no room, nothing that may be evicted would make it, and nothing is
	// promised.
	Waiting Outcome = "Waiting"
	// MakingRoom: it is promised, and the node evicts what it needs.
	MakingRoom Outcome = "MakingRoom"
	// Granted: it is promised, and the room is free.
	Granted Outcome = "Granted"
)

// Promised reports whether the room is kept.
func (o Outcome) Promised() bool { return o == MakingRoom || o == Granted }

// An Answer says what becomes of a growth, and why, in words with numbers.
type Answer struct {
	Outcome Outcome
	Why     string
}

// A growth is room that is promised to a PersistentVolume and not seen on it yet.
type growth struct {
	charge
	// base is the version of the object that it is to be written on. A write names that, so
	// once there is a later one it has been done, or never will be.
	base uint64
	// unsure: a write was begun, and nobody knows whether it was, or will be, done.
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

// Grow asks for the volume of a PersistentVolume, as it is in the API now, to become so
// large. What is promised is kept from then on: until the caller has written the object and
// recorded that (Written), even if it never learns whether the write was done. What was
// promised before falls only by what is written, too.
//
// Nothing is promised that evictions could not make free: in a thin pool, what a volume
// grows by must be free at one moment; and layouts of several devices need their share on
// each.
func (l *Ledger) Grow(object *corev1.PersistentVolume, to volume.Bytes) Answer {
	l.mu.Lock()
	touched := l.writtenLocked(object)
	answer, c := l.judgeGrowth(object, to)
	if name := object.Name; answer.Outcome.Promised() && l.written(name) {
		label := l.where[name]
		now := growth{charge: c, base: versionOf(object)}
		before, growing := l.growth(name)
		// What was to be written on the same version may be written yet.
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

// NotWritten ends what was promised to a PersistentVolume, as the caller saw it, and was not
// written on it: the API server has refused it, or was not asked to.
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

// Unsure records that a write of what was promised was begun, and that the API server has not
// said what came of it. The promise stays until there is a later version of the object.
func (l *Ledger) Unsure(object *corev1.PersistentVolume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if grows, growing := l.growth(object.Name); growing {
		grows.unsure = true
		l.accounts[l.where[object.Name]].growths[object.Name] = grows
	}
}

// keptTime is how long the room of a growth that is taken back is kept: a call that began before may carry it out
// yet. The longest, of the FlexVolume driver, ends after 3:10 minutes, and the node charges the PersistentVolume in
// its next round, which comes within 1:12 minutes where it is not called for and --interval is as shipped.
const keptTime = 5 * time.Minute

// keptFor names, among the reservations, the room that is kept for a PersistentVolume.
func keptFor(name string) string { return name + " (its growth)" }

// Keep reserves the room of a growth that is about to be taken back: by what the PersistentVolume is charged less
// within keptTime, and until it is charged as much again (keepRest).
func (l *Ledger) Keep(object *corev1.PersistentVolume) {
	v, err := persistentvolume.Parse(object)
	if err != nil {
		return // Written charges what can be read of it
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c, label, name := chargeOf(v), object.Labels[pv.LabelNode], keptFor(object.Name)
	kept := reservation{charge: charge{in: c.in, uuid: c.uuid}, until: l.now().Add(keptTime)}
	if before, there := l.account(label).reserved[name]; there && l.now().Before(before.until) {
		kept.charge = before.charge
	}
	l.reserveFor(label, name, kept)
}

// keepRest has what a PersistentVolume is charged and what is kept for it stay the same in sum.
func (a *account) keepRest(name string, before, now charge) {
	if r, there := a.reserved[keptFor(name)]; there {
		extent := ExtentOf(now.in, a.pools[now.in].extent)
		r.Noted = max(0, r.Noted+before.In(extent)-now.In(extent))
		a.reserved[keptFor(name)] = r
	}
}

// MayGrow says what Grow would, and promises nothing.
func (l *Ledger) MayGrow(object *corev1.PersistentVolume, to volume.Bytes) Answer {
	l.mu.Lock()
	defer l.mu.Unlock()
	answer, _ := l.judgeGrowth(object, to)
	return answer
}

// Holds reports whether a pool holds what its PersistentVolumes are promised, with that of
// object; true where its node has not reported it.
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
	left := l.left(a, v.Pool(), p)
	if v.Shape.Layout == volume.Thin {
		left += 2 * volume.ThinStep(p.size) // by which a node reports less than there is
	}
	return left >= 0
}

// An extension is a growth in the numbers of its pool.
type extension struct {
	v    persistentvolume.Volume // as it is, without what it is promised
	to   persistentvolume.Volume
	in   volume.PoolName
	more volume.Bytes // what the pool is charged for it
	left volume.Bytes // what the pool can promise without it
	// promised is the size that the object says is promised; 0 for none.
	promised volume.Bytes
}

func (l *Ledger) judgeGrowth(object *corev1.PersistentVolume, size volume.Bytes) (Answer, charge) {
	v, err := persistentvolume.Parse(object)
	if err != nil {
		return Answer{Waiting, err.Error()}, charge{}
	}
	label, in := object.Labels[pv.LabelNode], v.Pool()
	a, there := l.accounts[label]
	if !there || a.node == "" {
		return Answer{Waiting, fmt.Sprintf("node %q has not reported its volume groups; look at `kubectl get nodestorages` and at the pod of DaemonSet flexlvm-gc there", label)}, charge{}
	}
	p, there := a.pools[in]
	unread := a.unread()
	switch {
	case unread != "":
		return Answer{Waiting, fmt.Sprintf("node %q %s", a.node, unreadable(unread))}, charge{}
	case !there:
		return Answer{Waiting, fmt.Sprintf("node %q has no %s %q; it has %s", a.node, in.Noun(), in, named(a.pools))}, charge{}
	case v.GroupUUID != "" && v.GroupUUID != p.uuid:
		return Answer{Waiting, fmt.Sprintf("volume group %q on node %q is not the one that the volume was made in, so the volume is not there to grow", in.Group(), a.node)}, charge{}
	}
	if n := a.snapshotsOf(v.Group, v.Volume); n > 0 && size > v.Size {
		return Answer{Waiting, fmt.Sprintf("it has %s with a store of its own, and LVM extends no volume in use that has such; delete the VolumeSnapshots, and it grows once they are gone", volume.Counted(n, "snapshot", "snapshots"))}, charge{}
	}
	e := extension{v: v.Grown(v.Size), to: v.Grown(size), in: in, promised: v.Growing}
	e.more = e.to.Charge().In(p.extent) - e.v.Charge().In(p.extent)
	e.left = l.left(a, in, p) + a.taken(v.PV, l.entry(v.PV).charge(), in, p) - e.v.Charge().In(p.extent)
	e.left += a.reserved[keptFor(v.PV)].from(in, p)
	if v.Kind == volume.Dataset {
		e.left -= p.replicas // replicas do not drive each other out
	}
	answer := e.judge(p)
	if answer.Outcome.Promised() {
		return answer, chargeOf(e.to)
	}
	return answer, charge{}
}

// snapshotsOf counts the copy-on-write snapshots of a volume, also those that are only promised.
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

// judge decides about a growth in a pool that is there.
func (e extension) judge(p pool) Answer {
	if why := e.never(p); why != "" {
		return Answer{Refused, why}
	}
	switch {
	case p.closed != "":
		return Answer{Waiting, fmt.Sprintf("nothing more is promised in %s %q: %s", e.in.Noun(), e.in, p.closed)}
	case e.more <= 0:
		return Answer{Granted, "the volume is charged that much already"}
	case e.more > e.left:
		return Answer{Waiting, fmt.Sprintf("%s more are needed and %s %q can still promise %s", AmountOf(e.more), e.in.Noun(), e.in, AmountOf(max(0, e.left)))}
	case e.v.Shape.Layout == volume.Thin:
		return e.judgeThin(p)
	case e.v.Shape.Devices() > 1:
		return e.judgeDevices(p)
	}
	// A promise of its own that the node knows is among those that it reports.
	known := e.promised >= e.to.Size && p.promised >= e.more && p.unused >= p.promised
	if e.more <= p.unused && (known || e.more <= e.left-p.reclaimable-p.removing) {
		return e.granted()
	}
	return e.makingRoom(p, e.more)
}

// never says why a pool can never hold the volume, or nothing.
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

// atOnce is by how much the device grows.
func (e extension) atOnce() volume.Bytes {
	return e.v.DeviceSize(e.to.Size) - e.v.DeviceSize(e.v.Size)
}

// judgeThin decides in a thin pool that can promise it: all that the volume grows by must
// be free at one moment, or become so.
func (e extension) judgeThin(p pool) Answer {
	once, most := e.atOnce(), p.unused+p.removing+p.reclaimable-p.replicas
	switch {
	case once <= p.unused:
		return e.granted()
	case once <= most:
		return e.makingRoom(p, once)
	}
	return Answer{Waiting, fmt.Sprintf("%s must be free at one moment in %s %q, where %s are, and %s may be evicted", AmountOf(once), e.in.Noun(), e.in, AmountOf(p.unused), AmountOf(p.reclaimable-p.replicas))}
}

// judgeDevices decides for a layout of several devices, of which each must have its share
// free.
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
	free := wide(p.free(e.left, p.size)) // with nothing that would have to be evicted
	if free >= e.v.Shape.Devices() {
		return e.granted()
	}
	// Copies grow on their own devices, and on which a volume lies is known only where it
	// lies on all of them.
	known := e.v.Shape.Layout != volume.Raid1 || len(p.devices) == e.v.Shape.Devices()
	if known && wide(p.free(e.left, p.replicas)) >= e.v.Shape.Devices() {
		return e.makingRoom(p, e.more)
	}
	return Answer{Waiting, fmt.Sprintf("layout %s needs %s more on each of %d devices, and %s %q, of %s, has so much free on %d",
		e.v.Shape.Layout, AmountOf(share), e.v.Shape.Devices(), e.in.Noun(), e.in, volume.Counted(len(p.devices), "device", "devices"), free)}
}

func (e extension) granted() Answer {
	return Answer{Granted, fmt.Sprintf("%s more are reserved in %s %q", AmountOf(e.more), e.in.Noun(), e.in)}
}

func (e extension) makingRoom(p pool, need volume.Bytes) Answer {
	return Answer{MakingRoom, fmt.Sprintf("%s more are needed and kept for it; in %s %q %s are free, for this and what is promised to others, and %s may be evicted",
		AmountOf(need), e.in.Noun(), e.in, AmountOf(p.unused), AmountOf(p.reclaimable))}
}
