package nodeagent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// No watch of this node shows the PersistentVolumes of other nodes, or without a node, that keep an unreferenced
// volume here. So the API server is asked about each volume before its room is offered to new claims, which would
// otherwise wait for it in vain, and repeatedly about kept ones, to notice when their PersistentVolumes are gone.

// askBudget bounds the time of askKept in one round, checked before each volume, because room may be needed
// meanwhile.
const askBudget = 5 * time.Second

// askKept asks the API server about the volumes that dueToAsk returns. After the API server has gone back in time,
// kept volumes stay kept, because it may lack their PersistentVolumes. While it does not answer, no volume's state
// changes.
func (d *Daemon) askKept(ctx context.Context, f observation) {
	deadline := time.Now().Add(askBudget)
	due, more := d.dueToAsk(f)
	var free []string
	for _, v := range due {
		if time.Now().After(deadline) {
			more = true
			break
		}
		err := d.checkNotKept(ctx, v, nil)
		switch {
		case err == nil, refused(err, refusedChanged): // the round itself judges PersistentVolumes of this node
			if _, kept := d.elsewhere.failed(v.UUID); kept {
				free = append(free, v.UUID)
			}
		case refused(err, refusedKept):
			d.announceNotRemoved(ctx, v, err, d.elsewhere.add(v.UUID, f.at, brief(err)))
		default:
			d.asks.add("", f.at, brief(err))
			return
		}
		d.asks.clear("")
		d.asked.add(v.UUID)
	}
	if more {
		d.kick()
	}
	d.free(ctx, free)
}

// free marks volumes, by their UUIDs, as no longer kept, unless the API server proves to have gone back in time.
func (d *Daemon) free(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	if _, _, err := d.listVolumes(ctx); err != nil || d.watches.revisions.wentBack() != "" {
		return
	}
	for _, id := range ids {
		d.elsewhere.clear(id)
		d.dedupe.end("removal " + id)
	}
}

// dueToAsk returns the volumes that askKept asks about in this round, and whether more are left: first kept ones
// whose backoff has passed, the longest overdue first, and then those that this process has not asked about yet, the
// least recently used first, as they are evicted. After a failed request, the latter wait for its backoff.
func (d *Daemon) dueToAsk(f observation) (due []inventory.Volume, more bool) {
	var kept, fresh []inventory.Volume
	wentBack, silent := d.watches.revisions.wentBack() != "", d.asks.waits("", f.at)
	for _, v := range f.inventory.Volumes {
		switch r, is := d.elsewhere.failed(v.UUID); {
		case is && v.State == volume.Unreferenced && !wentBack && !f.at.Before(r.until):
			kept = append(kept, v)
		case d.isUnasked(v) && !silent:
			fresh = append(fresh, v)
		}
	}
	slices.SortFunc(kept, func(a, b inventory.Volume) int { return d.elsewhere.due(a.UUID).Compare(d.elsewhere.due(b.UUID)) })
	slices.SortFunc(fresh, func(a, b inventory.Volume) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), cmp.Compare(a.UUID, b.UUID))
	})
	due = slices.Concat(kept, fresh)
	return due[:min(len(due), mostGets)], len(due) > mostGets
}

// isUnasked reports whether the API server has yet to be asked if a PersistentVolume outside this node's list keeps
// the volume, which is unreferenced. It is false for replicas, whose PersistentVolumes cannot be found by the volume's
// name.
func (d *Daemon) isUnasked(v inventory.Volume) bool {
	_, kept := d.elsewhere.failed(v.UUID)
	return v.State == volume.Unreferenced && v.Cluster == d.cluster && v.Kind != volume.Dataset && !kept && !d.asked.has(v.UUID)
}

// unasked returns the UUIDs of the volumes for which isUnasked is true.
func (d *Daemon) unasked(volumes []inventory.Volume) map[string]bool {
	out := map[string]bool{}
	for _, v := range volumes {
		if d.isUnasked(v) {
			out[v.UUID] = true
		}
	}
	return out
}

// noteAsked records that no PersistentVolume outside this node's list keeps a volume that is being released: the one
// with the volume's name is the released one.
func (d *Daemon) noteAsked(v inventory.Volume, c persistentvolume.Volume) {
	if c.PV == string(v.Name) {
		d.asked.add(v.UUID)
	}
}
