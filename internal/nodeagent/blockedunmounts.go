package nodeagent

import (
	"context"
	"slices"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// blockedUnmounts says whether the removal of a volume waits for an unmount.
type blockedUnmounts struct {
	inUse   atomic.Bool   // the last round saw a volume that was given up and is still in use
	changes atomic.Uint64 // number of changes of the host's mounts so far
}

// awaitUnmounts makes a round soon after a change of the host's mounts, where the last one
// has seen a volume in use that was given up. The API says nothing of that: a pod that was
// deleted by force is gone from it before its volumes are unmounted.
func (d *Daemon) awaitUnmounts(ctx context.Context) {
	if d.cfg.Mounts == nil {
		return
	}
	changed := func() {
		d.blockedUnmounts.changes.Add(1)
		if d.blockedUnmounts.inUse.Load() {
			d.kick()
		}
	}
	if err := d.cfg.Mounts(ctx, changed); err != nil {
		klog.FromContext(ctx).Error(err, "Mounts cannot be watched; a volume that was given up while it is in use goes some rounds later")
	}
}

// noteBlockedUnmounts notes whether volumes of this cluster were given up and are still in use.
// since is the number of changes before the inventory was taken: a volume that was unmounted
// meanwhile may have been seen mounted.
func (d *Daemon) noteBlockedUnmounts(all []inventory.Volume, since uint64) {
	inUse := slices.ContainsFunc(all, func(v inventory.Volume) bool {
		givenUp := v.State == volume.Unreferenced || v.State == volume.Doomed
		return givenUp && v.Cluster == d.cluster && v.InUse()
	})
	d.blockedUnmounts.inUse.Store(inUse)
	if inUse && d.blockedUnmounts.changes.Load() != since {
		d.kick()
	}
}
