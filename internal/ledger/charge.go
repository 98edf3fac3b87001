package ledger

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A charge is the space that a PersistentVolume takes from a pool.
type charge struct {
	in   volume.PoolName // empty: the pool cannot be read
	uuid string          // of the group; empty: any group of that name
	// replica is the name of a replica's volume, which no other PersistentVolume of the node may have.
	// It is empty for other volumes.
	replica volume.Name
	// of is the source of a copy-on-write snapshot; a source with such a snapshot cannot grow. It is
	// empty for other volumes.
	of volume.Name
	// leaves: the replica may be evicted while it is unused.
	leaves bool
	// removing: the PersistentVolume is being removed, so its node may not count its volume as allocatable any more.
	removing bool
	persistentvolume.Charge
}

// chargeOf returns the charge of a parsed PersistentVolume.
func chargeOf(c persistentvolume.Volume) charge {
	out := charge{in: volume.PoolName(controlplane.Shared(string(c.Pool()))), uuid: controlplane.Shared(c.GroupUUID), removing: c.BeingRemoved(), Charge: c.Charge()}
	if c.Kind == volume.Dataset {
		out.replica, out.leaves = c.Volume, c.Replica.Allowed()
	}
	if c.CopyOnWrite() {
		out.of = volume.Name(controlplane.Shared(string(c.CloneOf)))
	}
	return out
}

// chargedWith returns the charge of a PersistentVolume and the label of its node; false if there is
// none.
//
// A PersistentVolume that cannot be parsed may be of a later release, whose node counts the volume's
// space as allocatable. It is charged what can be read of it, and at least its previous charge. If its
// node cannot parse it either, the node has subtracted the volume, too: charging it twice is safe, and
// not charging it is not.
func (l *Ledger) chargedWith(object *corev1.PersistentVolume) (label string, c charge, charged bool) {
	label = object.Labels[pv.LabelNode]
	if label == "" || !persistentvolume.IsOurs(object) {
		return "", charge{}, false
	}
	v, err := persistentvolume.Parse(object)
	if err == nil {
		return label, chargeOf(v), true
	}
	if persistentvolume.TakesNone(object) {
		return "", charge{}, false
	}
	var before charge
	if l.where[object.Name] == label {
		before = l.accounts[label].charged(object.Name)
	}
	v, known := persistentvolume.Estimate(object)
	switch {
	case known:
		c = chargeOf(v)
		c.Noted = max(c.Noted, before.Noted)
	case before.in != "":
		c = before // a PersistentVolume's source is immutable
	}
	return label, c, true
}

// unread returns the first PersistentVolume by name whose pool cannot even be read, or "".
func (a *account) unread() (first string) {
	unless := func(name string, c charge) {
		if c.in == "" && (first == "" || name < first) {
			first = name
		}
	}
	for name, e := range a.written {
		unless(name, e.charge())
	}
	for name, r := range a.reserved {
		unless(reservedFor(name), r.charge)
	}
	for _, d := range a.departed {
		unless(d.name, d.charge)
	}
	return first
}

// reservedFor returns the PersistentVolume that a reservation of this name is for, without what attemptOn or keptFor
// appends.
func reservedFor(name string) string {
	object, _, _ := strings.Cut(name, " ")
	return object
}

func (w Want) charge() charge {
	out := charge{in: w.Spec.Pool(), Charge: persistentvolume.ChargeOf(w.Spec, max(w.Charged, w.Spec.Charge()))}
	if w.Spec.Kind == volume.Dataset {
		out.replica = w.Spec.Name
	}
	if w.Spec.CopyOnWrite() {
		out.of = w.Spec.CloneOf
	}
	return out
}
