package nodeagent

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unmountPause is the least time between two rounds that changes of mounts trigger: a volume may stay in use for
// hours, and pods mount all the time.
const unmountPause = 10 * time.Second

// blockedUnmounts records whether the removal of a volume waits for an unmount.
type blockedUnmounts struct {
	inUse   atomic.Bool   // the last round saw a volume that was given up and is still in use
	changes atomic.Uint64 // number of changes of the host's mounts so far
	due     chan struct{} // changes have not been followed by a round yet
	pause   time.Duration // unmountPause, except in tests
}

// awaitUnmounts triggers a round after a change of the host's mounts, if the last round observed a volume that
// was given up and is still in use. The API shows no such change: a pod that was deleted by force is gone from
// it before its volumes are unmounted.
func (d *Daemon) awaitUnmounts(ctx context.Context) {
	if d.cfg.Mounts == nil {
		return
	}
	var kicks sync.WaitGroup
	defer kicks.Wait()
	kicks.Go(func() { d.kickAfterUnmounts(ctx) })
	changed := func() {
		d.blockedUnmounts.changes.Add(1)
		if d.blockedUnmounts.inUse.Load() {
			notify(d.blockedUnmounts.due)
		}
	}
	if err := d.cfg.Mounts(ctx, changed); err != nil {
		klog.FromContext(ctx).Error(err, "Mounts cannot be watched; a volume that is given up while in use is evicted some rounds after it is no longer used")
	}
}

// kickAfterUnmounts triggers a round after a change, and after a pause another one if there were more changes.
func (d *Daemon) kickAfterUnmounts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.blockedUnmounts.due:
		}
		if d.blockedUnmounts.inUse.Load() {
			d.kick()
		}
		if pause.For(ctx, d.blockedUnmounts.pause) != nil {
			return
		}
	}
}

// noteBlockedUnmounts records whether volumes of this cluster were given up and are still in use. since is the
// number of changes before the inventory was taken, which may show a volume as mounted that was unmounted
// meanwhile.
func (d *Daemon) noteBlockedUnmounts(all []inventory.Volume, since uint64) {
	inUse := slices.ContainsFunc(all, func(v inventory.Volume) bool {
		givenUp := v.State == volume.Unreferenced || v.State == volume.Doomed
		return givenUp && v.Cluster == d.cluster && v.InUse()
	})
	d.blockedUnmounts.inUse.Store(inUse)
	if inUse && d.blockedUnmounts.changes.Load() != since {
		notify(d.blockedUnmounts.due)
	}
}
