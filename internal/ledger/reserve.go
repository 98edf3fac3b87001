package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Want is a volume that needs a reservation.
type Want struct {
	PV    string // name of its future PersistentVolume
	Claim string // name of its claim, for messages
	Spec  volume.Spec
	// Charged is the charge that its PersistentVolume will record, which may exceed that of the spec.
	Charged volume.Bytes
}

// NoRoomError is the error that explains, in numbers, why a node cannot hold the requested volumes.
type NoRoomError struct {
	Node string
	Why  string
	// Short: too little is free, so Why changes with the free room.
	Short bool
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("node %q %s; the scheduler is asked for another node", e.Node, e.Why)
}

// Reserve reserves room on a node for all wants or for none, and returns the UUIDs of the pools' volume
// groups. The first want is about to be written, or all are if they are snapshots; the others belong to
// other claims of the pod, and will be reserved again when it is their turn. A want's previous reservation,
// on any node, is replaced, but its room stays reserved if an earlier attempt may have written the PersistentVolume
// there. A want of another claim whose PersistentVolume is written, or may be at this moment, is settled: it keeps
// its reservation, which must be on this node. reads are the volumes of the datasets that the pod of these wants
// reads: the pod keeps their replicas in use, so they cannot be evicted for it. The error is a *NoRoomError, and then
// only settled wants and earlier attempts have a reservation.
func (l *Ledger) Reserve(node string, wants []Want, reads ...volume.Name) (map[volume.PoolName]string, error) {
	label := pv.NodeLabelValue(node)
	l.mu.Lock()
	uuids, touched, err := l.reserveLocked(label, node, wants, reads)
	l.mu.Unlock()
	for _, one := range touched {
		l.changed(one)
	}
	return uuids, err
}

func (l *Ledger) reserveLocked(label, node string, wants []Want, reads []volume.Name) (uuids map[volume.PoolName]string, touched []string, err error) {
	t, touched := l.divide(label, wants)
	uuids, held, err := l.reserveOpen(label, node, t, reads)
	l.keepEarlier(label, t, err == nil)
	if err == nil || held {
		touched = append(touched, label)
	}
	return uuids, touched, err
}

// reserveOpen reserves the open wants; held reports whether the node offers less for a while because they do not fit.
func (l *Ledger) reserveOpen(label, node string, t attempt, reads []volume.Name) (uuids map[volume.PoolName]string, held bool, err error) {
	a, wants, open := l.account(label), t.wants, t.open
	if why := cmp.Or(l.otherClaimElsewhere(label, t.settled), a.unfit(wants)); why != "" {
		return nil, false, &NoRoomError{Node: node, Why: why}
	}
	uuids = map[volume.PoolName]string{}
	for _, in := range poolsFor(wants) {
		p, there := a.pools[in]
		if !there {
			return nil, false, &NoRoomError{Node: node, Why: fmt.Sprintf("has no %s %q; it has %s", in.Noun(), in, named(a.pools))}
		}
		if why := a.closed(in, p); why != "" {
			return nil, false, &NoRoomError{Node: node, Why: why}
		}
		_, largest := need(open, in, p.extent)
		room, kept := max(0, l.left(a, in, p)), a.kept(p, in, reads)
		why := cmp.Or(p.short(open, in, room), p.readsShort(open, in, max(0, room-kept), reads), p.lacksDevices(open, in, promise{room, kept, a.spread(in, p)}))
		if why != "" {
			if mayHold(wants, kept) && largest.charge().In(p.extent) <= room {
				a.holds[in] = hold{largest.Spec.Size - volume.Block, l.now().Add(holdTime)}
				held = true
			}
			return nil, held, &NoRoomError{Node: node, Why: why, Short: true}
		}
		uuids[in] = p.uuid
	}
	for _, w := range open {
		one := reservation{charge: w.charge(), writing: w.hasTurn(wants), until: l.now().Add(OtherClaimTime)}
		if one.writing {
			one.until = l.now().Add(ReservationTime)
		}
		one.uuid = uuids[one.in]
		l.reserveFor(label, w.PV, one)
	}
	return uuids, false, nil
}

// mayHold reports whether a scheduler may have sent wants that do not fit, because it checks claims one
// by one and ignores the replicas that their pod reads. No scheduler sends snapshots, and other claims
// need not wait for them. Nor need they wait for copies, which are on this node whatever the scheduler chooses:
// each retry would renew the hold.
func mayHold(wants []Want, kept volume.Bytes) bool {
	if wants[0].Spec.Kind == volume.Snapshot || slices.ContainsFunc(wants, func(w Want) bool { return w.Spec.CloneOf != "" }) {
		return false
	}
	return len(wants) > 1 || kept > 0
}

// hasTurn reports whether a want is about to be written, rather than waiting for its turn. Snapshots are
// reserved in one call and written one after the other.
func (w Want) hasTurn(among []Want) bool {
	return w.PV == among[0].PV || w.Spec.Kind == volume.Snapshot
}

// otherClaimElsewhere returns why a node cannot hold the wants because another claim of the pod is settled on
// another node, or "".
func (l *Ledger) otherClaimElsewhere(label string, settled []Want) string {
	for _, w := range settled {
		if at := l.where[w.PV]; at != label {
			return fmt.Sprintf("cannot have it: claim %q, which its pod uses too, gets its volume on node %q", w.Claim, cmp.Or(l.accounts[at].lastName, at))
		}
	}
	return ""
}

// unfit returns why a node takes none of the wants, regardless of its room, or "".
func (a *account) unfit(wants []Want) string {
	if a.node == "" {
		return "has not reported its volume groups; check `kubectl get nodestorages` and the pod of DaemonSet flexlvm-gc there"
	}
	if unread := a.unread(); unread != "" {
		return unreadable(unread)
	}
	if other := a.otherReplica(wants); other != "" {
		return fmt.Sprintf("has a replica of this dataset already, or is about to (PersistentVolume %q)", other)
	}
	if left := a.leftOver(wants); left != "" {
		return fmt.Sprintf("has a volume %s without a PersistentVolume, and a replica must not begin with what it holds; check it there with `flexlvm volumes show %s`, and give it up with `forget`", left, left)
	}
	return ""
}

// unreadable returns why a node with such a PersistentVolume promises nothing more.
func unreadable(name string) string {
	return fmt.Sprintf("is promised nothing more, as not even the pool of PersistentVolume %q can be read: upgrade the provisioner if a later release has written it, or else delete it and create it again", name)
}

// otherReplica returns a PersistentVolume of the node, written, reserved or just deleted, whose volume has the
// name of a replica among the wants, or "".
func (a *account) otherReplica(wants []Want) string {
	for _, w := range wants {
		name := w.charge().replica
		if name == "" {
			continue
		}
		for other, e := range a.written {
			if e.charge().replica == name && other != w.PV {
				return other
			}
		}
		for reserved, r := range a.reserved {
			if other := reservedFor(reserved); r.replica == name && other != w.PV {
				return other
			}
		}
		for _, d := range a.departed {
			if d.replica == name {
				return d.name
			}
		}
	}
	return ""
}

// leftOver returns a stray volume of the node that has the name of a replica among the wants, or "".
func (a *account) leftOver(wants []Want) volume.Name {
	for _, w := range wants {
		if name := w.charge().replica; name != "" && a.strays[stray{w.Spec.Group, name}] {
			return name
		}
	}
	return ""
}

// kept returns how much room evicting the replicas of these volumes would free in a pool. Some may
// already be in use, and so not be reclaimable: then the result is too high, and the node is rejected
// although other replicas could have been evicted.
func (a *account) kept(in pool, name volume.PoolName, reads []volume.Name) (sum volume.Bytes) {
	for _, e := range a.written {
		c := e.charge()
		if c.in == name && c.leaves && slices.Contains(reads, c.replica) {
			sum += c.In(in.extent)
		}
	}
	return min(sum, in.replicas)
}

// short returns that a pool has too little room for wants, or "". Room that replicas hold is available
// only to claims: replicas would evict each other in turn.
func (p pool) short(wants []Want, in volume.PoolName, room volume.Bytes) string {
	if need, _ := need(wants, in, p.extent); need > room {
		return shortOf(wants, in, room, need)
	}
	var replicas []Want
	for _, w := range wants {
		if w.Spec.Kind == volume.Dataset {
			replicas = append(replicas, w)
		}
	}
	room = max(0, room-p.replicas)
	if need, _ := need(replicas, in, p.extent); need > room {
		return shortOf(replicas, in, room, need)
	}
	return ""
}

// readsShort returns that a pool has too little room for wants without evicting the replicas that their
// pod reads, or "".
func (p pool) readsShort(wants []Want, in volume.PoolName, room volume.Bytes, reads []volume.Name) string {
	need, _ := need(wants, in, p.extent)
	if need <= room {
		return ""
	}
	return fmt.Sprintf("%s, and what this pod reads (%s) does not count, for it stays", shortOf(wants, in, room, need), joined(reads))
}

// need returns how much room wants need in a pool, and the largest of them.
func need(wants []Want, in volume.PoolName, extent volume.Bytes) (sum volume.Bytes, largest Want) {
	for _, w := range wants {
		if w.Spec.Pool() != in {
			continue
		}
		sum += w.charge().In(extent)
		if w.Spec.Size > largest.Spec.Size {
			largest = w
		}
	}
	return sum, largest
}

// A promise is the state of a pool's promises for which its devices are considered.
type promise struct {
	room   volume.Bytes // how much of the pool can still be promised
	stays  volume.Bytes // how much of the reclaimable room is not evicted
	spread spread       // of what is promised
}

// free returns how much may be allocated on each physical device of a pool: its free space and what may
// be evicted from it.
//
// Volumes that are promised but not created yet may be placed on any device, so the most that they can
// take of one device is subtracted from each. The devices of the room that stays are not known either,
// so it is subtracted from the reclaimable room of each.
func (p pool) free(now promise) []volume.Bytes {
	var free, reclaimable volume.Bytes
	for i, f := range p.devices {
		free += f
		reclaimable += p.reclaimOn[i]
	}
	pending := now.spread.onEach(max(0, free+max(reclaimable, p.reclaimable)-now.room))
	out := make([]volume.Bytes, 0, len(p.devices))
	for i, f := range p.devices {
		out = append(out, max(0, f+max(0, p.reclaimOn[i]-now.stays)-pending))
	}
	return out
}

// lacksDevices returns why wants that need several physical devices cannot have them, or "".
func (p pool) lacksDevices(wants []Want, in volume.PoolName, now promise) string {
	if slices.ContainsFunc(wants, func(w Want) bool { return w.Spec.Pool() == in && w.Spec.Kind == volume.Dataset }) {
		now.stays = p.replicas
	}
	free := p.free(now)
	for _, w := range wants {
		if w.Spec.Pool() != in {
			continue
		}
		shape, device := w.Spec.Shape(), w.Spec.DeviceSize()
		share := shape.Share(device, p.extent)
		if shape.Devices() > 1 && !shape.Holds(free, device, p.extent) {
			return fmt.Sprintf("has no room for it: layout %s needs %s on each of %d devices, and %s %q, of %s, has not so much free on as many",
				shape.Layout, AmountOf(share), shape.Devices(), in.Noun(), in, volume.Pluralize(len(free), "device", "devices"))
		}
		for i := range free {
			free[i] = max(0, free[i]-share)
		}
	}
	return ""
}

func poolsFor(wants []Want) []volume.PoolName {
	var out []volume.PoolName
	for _, w := range wants {
		if !slices.Contains(out, w.Spec.Pool()) {
			out = append(out, w.Spec.Pool())
		}
	}
	slices.Sort(out)
	return out
}

func named(pools map[volume.PoolName]pool) string {
	if len(pools) == 0 {
		return "none"
	}
	var names []string
	for _, g := range slices.Sorted(maps.Keys(pools)) {
		names = append(names, string(g))
	}
	return strings.Join(names, ", ")
}

func joined(names []volume.Name) string {
	out := make([]string, 0, len(names))
	for _, n := range names {
		out = append(out, string(n))
	}
	return strings.Join(out, ", ")
}

func shortOf(wants []Want, in volume.PoolName, room, need volume.Bytes) string {
	whom := "for it"
	switch {
	case len(wants) > 1 && wants[0].Spec.Kind == volume.Snapshot:
		whom = fmt.Sprintf("for %d snapshots together, which are taken at one instant", len(wants))
	case len(wants) > 1:
		var names []string
		for _, w := range wants {
			if w.Spec.Pool() == in {
				names = append(names, w.Claim)
			}
		}
		whom = fmt.Sprintf("for the claims %s together, which are used by one pod", strings.Join(names, ", "))
	}
	return fmt.Sprintf("has no room %s: %s are needed and %s %q can still promise %s", whom, AmountOf(need), in.Noun(), in, AmountOf(room))
}

// AmountOf formats an amount both in bytes and in a readable unit.
func AmountOf(b volume.Bytes) string { return fmt.Sprintf("%d bytes (%s)", int64(b), b) }

// ExpireReservations drops the expired reservations and holds of a node, and returns when the next one expires;
// zero if there is none.
func (l *Ledger) ExpireReservations(label string) (next time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, there := l.accounts[label]
	if !there {
		return next
	}
	defer l.offerAnew(label) // expired reservations free room
	now := l.now()
	sooner := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for name, r := range a.reserved {
		if now.Before(r.until) {
			sooner(r.until)
		} else {
			l.drop(name)
		}
	}
	for in, h := range a.holds {
		if now.Before(h.until) {
			sooner(h.until)
		} else {
			delete(a.holds, in)
		}
	}
	return next
}
