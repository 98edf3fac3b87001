package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A snapshot's store is announced from almostFull per cent on, and again after each fullStep. While there are
// snapshots that may become invalid, fillCheck is how often their fill levels are checked, because rounds are too rare
// to announce them in time.
const (
	almostFull = 80
	fullStep   = 5
	fillCheck  = 2 * time.Second
)

// A snapshotStore is a copy-on-write snapshot that may overflow or has overflowed.
type snapshotStore struct {
	of     *persistentvolume.Volume
	volume *inventory.Volume
}

// percent returns how full the store is.
func (s snapshotStore) percent() int { return int(s.volume.Stored * 100 / max(s.volume.Allocated, 1)) }

// snapshotStores returns the taken snapshots that have less room than their sources can overwrite, or have overflowed.
func (f observation) snapshotStores() (out []snapshotStore) {
	volumes := map[eviction.Key]*inventory.Volume{}
	for i := range f.inventory.Volumes {
		if v := &f.inventory.Volumes[i]; v.SnapshotOf != "" && v.Cluster == f.view.Cluster {
			volumes[eviction.KeyOf(v)] = v
		}
	}
	for i := range f.view.PersistentVolumes {
		c := &f.view.PersistentVolumes[i]
		v, there := volumes[eviction.KeyOfPersistentVolume(c)]
		if there && c.CopyOnWrite() && c.Taken && (c.Reserve != 0 || v.Overflowed) {
			out = append(out, snapshotStore{c, v})
		}
	}
	return out
}

// watchSnapshotStores triggers a round each time that a store reaches the next fullStep.
func (d *Daemon) watchSnapshotStores(ctx context.Context) {
	if d.cfg.Fills == nil {
		return
	}
	ticker := time.NewTicker(fillCheck)
	defer ticker.Stop()
	var last map[string]int
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !d.validSnapshots.Load() {
			continue
		}
		fills, err := d.cfg.Fills(ctx)
		if err != nil {
			if ctx.Err() == nil && d.dedupe.note("fills", "", d.cfg.Now()) {
				klog.FromContext(ctx).Error(err, "The fill levels of snapshots are read in each round only", "interval", d.cfg.Interval.String())
			}
			continue
		}
		for name, percent := range fills {
			if percent >= almostFull && percent/fullStep > last[name]/fullStep {
				d.kick()
			}
		}
		last = fills
	}
}

// announceSnapshots announces copy-on-write snapshots whose stores are nearly full, and records on the
// PersistentVolumes of overflowed ones that they cannot be restored any more.
func (d *Daemon) announceSnapshots(ctx context.Context, f observation) {
	for _, s := range f.snapshotStores() {
		c, v, percent := s.of, s.volume, s.percent()
		if v.Overflowed {
			d.recordOverflow(ctx, f, c, v)
			continue
		}
		if c.Lost != "" {
			continue
		}
		if percent < almostFull {
			continue
		}
		why := fmt.Sprintf("the snapshot of volume %s has used %d%% (%s) of the %s that are set aside for what its source overwrites; if that fills up, the snapshot is lost, and its source is not: restore it before, or take another with more %s in its VolumeSnapshotClass",
			c.CloneOf, percent, v.Stored, v.Allocated, volume.OptionReserve)
		if d.dedupe.note("snapshot "+v.UUID, strconv.Itoa(percent/fullStep), f.at) {
			klog.FromContext(ctx).Info("A snapshot is almost full", "volume", eviction.KeyOf(v).String(), "of", c.CloneOf, "percent", percent)
			d.events.onVolume(f.objects[c.PV], warning, "SnapshotAlmostFull", why)
		}
	}
}

// hasValidSnapshots reports whether there is a copy-on-write snapshot that is valid. Even one whose store cannot overflow
// becomes invalid if its disk fails, which must be recorded before the machine reboots (node.Engine.Inventory). Inactive
// ones count, because heal or a mount may activate them before the next inventory. Fills does not list them until then.
func hasValidSnapshots(in inventory.Inventory) bool {
	return slices.ContainsFunc(in.Volumes, func(v inventory.Volume) bool { return v.SnapshotOf != "" && !v.Overflowed })
}

// recordOverflow records once on the PersistentVolume of a snapshot that it has overflowed, and repeats the event
// while the snapshot exists, as the alert does.
func (d *Daemon) recordOverflow(ctx context.Context, f observation, c *persistentvolume.Volume, v *inventory.Volume) {
	object := f.objects[c.PV]
	if object == nil || d.cfg.DryRun {
		return
	}
	why := fmt.Sprintf("the snapshot of volume %s has overflowed: its source has overwritten more than the %s that were set aside for that, or the disk that they are on has failed, so it cannot be restored any more; delete it", c.CloneOf, v.Allocated)
	if c.Lost == "" {
		err := d.api.Annotate(ctx, object, persistentvolume.NotTaken(why))
		if err != nil && !apierrors.IsConflict(err) && d.dedupe.note("snapshot "+v.UUID, err.Error(), f.at) {
			klog.FromContext(ctx).Error(err, "A snapshot has overflowed, and its PersistentVolume could not be annotated; it is retried", "volume", eviction.KeyOf(v).String())
		}
		if err != nil {
			return
		}
	}
	if d.dedupe.note("overflowed "+v.UUID, "", f.at) {
		klog.FromContext(ctx).Info("A snapshot has overflowed", "volume", eviction.KeyOf(v).String(), "of", c.CloneOf)
		d.events.onVolume(object, warning, "SnapshotOverflowed", why)
	}
}
