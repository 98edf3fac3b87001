package ledger

import (
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A charge is what a PersistentVolume takes of a pool.
type charge struct {
	in   volume.PoolName
	uuid string // of the group; empty: any of that name
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
