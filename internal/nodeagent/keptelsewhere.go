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

// keptCheckBudget bounds the time of checkKept in one round, checked before each volume, because room may be needed
// meanwhile.
const keptCheckBudget = 5 * time.Second

// checkKept asks the API server about the volumes that dueForKeptCheck returns. After the API server has gone back in
// time, kept volumes stay kept, because it may lack their PersistentVolumes. While it does not answer, no volume's
// state changes.
func (d *Daemon) checkKept(ctx context.Context, f observation) {
	deadline := time.Now().Add(keptCheckBudget)
	due, more := d.dueForKeptCheck(f)
	var unkept []string
	for _, v := range due {
		if time.Now().After(deadline) {
			more = true
			break
		}
		err := d.checkNotKept(ctx, v, nil)
		switch {
		case err == nil, refused(err, refusedChanged): // the round itself judges PersistentVolumes of this node
			if d.keptElsewhere.has(v.UUID) {
				unkept = append(unkept, v.UUID)
			}
		case refused(err, refusedKept):
			d.announceNotRemoved(ctx, v, err, d.keptElsewhere.add(v.UUID, f.at, brief(err)))
		default:
			d.keptCheckRetries.add("", f.at, brief(err))
			return
		}
		d.keptCheckRetries.clear("")
		d.keptChecked.add(v.UUID)
	}
	if more {
		d.kick()
	}
	d.unkeep(ctx, unkept)
}

// unkeep marks volumes, by their UUIDs, as no longer kept, unless the API server proves to have gone back in time.
func (d *Daemon) unkeep(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	if _, _, err := d.listVolumes(ctx); err != nil || d.watches.revisions.wentBack() != "" {
		return
	}
	for _, id := range ids {
		d.keptElsewhere.clear(id)
		d.dedupe.end("removal " + id)
	}
}

// dueForKeptCheck returns the volumes that checkKept asks about in this round, and whether more are left: first kept
// ones whose backoff has passed, the longest overdue first, and then those that this process has not asked about yet,
// the least recently used first, as they are evicted. After a failed request, the latter wait for its backoff.
func (d *Daemon) dueForKeptCheck(f observation) (due []inventory.Volume, more bool) {
	var again, fresh []inventory.Volume
	wentBack, silent := d.watches.revisions.wentBack() != "", d.keptCheckRetries.waits("", f.at)
	for _, v := range f.inventory.Volumes {
		switch r, kept := d.keptElsewhere.get(v.UUID); {
		case kept && v.State == volume.Unreferenced && !wentBack && !f.at.Before(r.until):
			again = append(again, v)
		case d.needsKeptCheck(v) && !silent:
			fresh = append(fresh, v)
		}
	}
	slices.SortFunc(again, func(a, b inventory.Volume) int {
		return d.keptElsewhere.due(a.UUID).Compare(d.keptElsewhere.due(b.UUID))
	})
	slices.SortFunc(fresh, func(a, b inventory.Volume) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), cmp.Compare(a.UUID, b.UUID))
	})
	due = slices.Concat(again, fresh)
	return due[:min(len(due), maxGets)], len(due) > maxGets
}

// needsKeptCheck reports whether the API server has yet to be asked if a PersistentVolume outside this node's list
// keeps the volume, which is unreferenced. It is false for replicas, whose PersistentVolumes cannot be found by the
// volume's name.
func (d *Daemon) needsKeptCheck(v inventory.Volume) bool {
	return v.State == volume.Unreferenced && v.Cluster == d.cluster && v.Kind != volume.Dataset && !d.keptElsewhere.has(v.UUID) && !d.keptChecked.has(v.UUID)
}

// keptUnchecked returns the UUIDs of the volumes for which needsKeptCheck is true.
func (d *Daemon) keptUnchecked(volumes []inventory.Volume) map[string]bool {
	out := map[string]bool{}
	for _, v := range volumes {
		if d.needsKeptCheck(v) {
			out[v.UUID] = true
		}
	}
	return out
}

// noteKeptChecked records that no PersistentVolume outside this node's list keeps a volume that is being released: the
// one with the volume's name is the released one.
func (d *Daemon) noteKeptChecked(v inventory.Volume, c persistentvolume.Volume) {
	if c.PV == string(v.Name) {
		d.keptChecked.add(v.UUID)
	}
}
