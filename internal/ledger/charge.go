package ledger

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A charge is what a PersistentVolume takes of a pool.
type charge struct {
	in   volume.PoolName // empty: it cannot be read
	uuid string          // of the group; empty: any of that name
	// replica is the name of a volume that no other PersistentVolume of the node may
	// have: that of a replica. Empty for others.
	replica volume.Name
	// of is the volume that a copy-on-write snapshot is taken of, which cannot grow. Empty for
	// others.
	of volume.Name
	// leaves: the replica may be evicted if nobody uses it.
	leaves bool
	persistentvolume.Charge
}

// chargeOf is what a PersistentVolume that was written takes.
func chargeOf(c persistentvolume.Volume) charge {
	out := charge{in: volume.PoolName(controlplane.Shared(string(c.Pool()))), uuid: controlplane.Shared(c.GroupUUID), Charge: c.Charge()}
	if c.Kind == volume.Dataset {
		out.replica, out.leaves = c.Volume, c.Replica.Allowed()
	}
	if c.CopyOnWrite() {
		out.of = volume.Name(controlplane.Shared(string(c.CloneOf)))
	}
	return out
}

// chargedWith returns the charge of a PersistentVolume and the label of its node. It returns false if nothing is
// charged.
//
// A PersistentVolume that cannot be parsed may be that of a later release, whose node counts its room as a claim's.
// It is charged what can be read of it, and not less than before. If its node cannot parse it either, its
// volume is subtracted there, too: charging it twice is safe, and not charging it is not.
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
		c = before // the source of a PersistentVolume is immutable
	}
	return label, c, true
}

// unread returns the first PersistentVolume by name of which not even the pool can be read; or nothing.
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
		unless(name, r.charge)
	}
	for _, d := range a.departed {
		unless(d.name, d.charge)
	}
	return first
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
