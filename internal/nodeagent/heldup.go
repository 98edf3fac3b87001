package nodeagent

import (
	"context"
	"slices"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// heldUp is what awaits changes of the host's mounts.
type heldUp struct {
	inUse   atomic.Bool   // a volume that was given up, as the last round has seen it
	changes atomic.Uint64 // of mounts, so far
}

// awaitUnmounts makes a round soon after a change of the host's mounts, where the last one
// has seen a volume in use that was given up. The API says nothing of that: a pod that was
// deleted by force is gone from it before its volumes are unmounted.
func (d *Daemon) awaitUnmounts(ctx context.Context) {
	if d.cfg.Mounts == nil {
		return
	}
	changed := func() {
		d.heldUp.changes.Add(1)
		if d.heldUp.inUse.Load() {
			d.kick()
		}
	}
	if err := d.cfg.Mounts(ctx, changed); err != nil {
		klog.FromContext(ctx).Error(err, "Mounts cannot be watched; a volume that was given up while it is in use goes some rounds later")
	}
}

// noteHeldUp notes whether volumes of this cluster were given up and are in use still. since
// is the count of changes before the node was looked at: what was unmounted meanwhile may
// have been seen mounted.
func (d *Daemon) noteHeldUp(all []inventory.Volume, since uint64) {
	inUse := slices.ContainsFunc(all, func(v inventory.Volume) bool {
		givenUp := v.State == volume.Unreferenced || v.State == volume.Doomed
		return givenUp && v.Cluster == d.cluster && (v.Open || len(v.Mounts) > 0)
	})
	d.heldUp.inUse.Store(inUse)
	if inUse && d.heldUp.changes.Load() != since {
		d.kick()
	}
}
