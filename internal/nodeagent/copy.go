package nodeagent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A copyJob is a PersistentVolume whose volume is created before its first mount: a copy, a snapshot, or a
// declared volume.
type copyJob struct {
	pv     persistentvolume.Volume
	object *corev1.PersistentVolume
	// group are all snapshots of the group, if this one is taken with others at one instant; else nil.
	group []copyJob
}

// enqueueCopies passes the copies of a round to their queues: writing a new log in the copy of a large volume
// takes a while, and full copies may take hours.
func (d *Daemon) enqueueCopies(f observation) {
	var jobs, full []copyJob
	made, busy := d.copier.at()
	filled, filling := d.filler.at()
	for _, c := range append(eviction.Copies(f.view), eviction.Declared(f.view)...) {
		if d.copies.waits(string(c.UID), f.at) || busy && made.pv.UID == c.UID || filling && filled.pv.UID == c.UID {
			continue
		}
		j := copyJob{pv: c, object: f.objects[c.PV]}
		if c.SnapshotGroup != "" {
			if j.group = groupOf(f, &c); j.group == nil {
				continue
			}
		}
		slow := c.CloneOf == "" && c.FSType == volume.Raw // a raw volume is zeroed
		if slow || c.CloneOf != "" && c.Shape.Layout != volume.Thin && c.Kind != volume.Snapshot {
			full = append(full, j)
		} else {
			jobs = append(jobs, j)
		}
	}
	d.copier.set(jobs)
	d.filler.set(full)
}

// makeCopy does one job. It is the work of the copy queues.
func (d *Daemon) makeCopy(ctx context.Context, j copyJob) {
	c, log := j.pv, klog.FromContext(ctx)
	if c.Kind == volume.Snapshot {
		d.makeSnapshots(ctx, j)
		return
	}
	if c.Declared && c.CloneOf == "" {
		d.prepare(ctx, j, specOf(&c))
		return
	}
	err := d.engine.MakeClone(ctx, specOf(&c))
	if ctx.Err() != nil {
		return // the daemon stops; the next process or the first mount creates it
	}
	defer d.kick()
	id, topic := string(c.UID), "copy "+string(c.UID)
	if err == nil {
		d.copies.clear(id)
		d.dedupe.over(topic)
		log.Info("Volume made as a copy", "volume", eviction.KeyOfPersistentVolume(&c).String(), "of", c.CloneOf, "persistentvolume", c.PV)
		message := "the copy of volume " + string(c.CloneOf) + " is taken: what is written there from now on is not in it"
		d.events.onVolume(j.object, normal, "VolumeCopied", message)
		d.events.onClaim(ctx, claimOfObject(j.object), normal, "VolumeCopied", message)
		return
	}
	if d.notCopied(ctx, j, err) {
		message := err.Error() + "; it is tried again"
		d.events.onVolume(j.object, warning, "VolumeNotCopied", message)
		d.events.onClaim(ctx, claimOfObject(j.object), warning, "VolumeNotCopied", message)
	}
}

// specOf returns the spec of the volume that a PersistentVolume describes.
func specOf(c *persistentvolume.Volume) volume.Spec {
	return volume.Spec{
		Group: c.Group, GroupUUID: c.GroupUUID, Name: c.Volume, Size: c.Size, Layout: c.Shape.Layout, ThinPool: c.Shape.ThinPool,
		Stripes: c.Shape.Stripes, StripeKiB: c.Shape.StripeKiB, Mirrors: c.Shape.Mirrors, Reserve: c.Reserve,
		CloneOf: c.CloneOf, Inodes: c.Inodes, FSType: c.FSType, Kind: c.Kind, Cluster: c.Cluster, Namespace: c.ClaimNamespace, Encrypted: c.Encrypted,
	}
}

// notCopied schedules a job's retry, and reports whether its error is news.
func (d *Daemon) notCopied(ctx context.Context, j copyJob, err error) bool {
	c, now := j.pv, d.cfg.Now()
	b := d.copies.add(string(c.UID), now, err.Error())
	if !d.dedupe.fresh("copy "+string(c.UID), err.Error(), now) {
		return false
	}
	klog.FromContext(ctx).Error(err, "A volume could not be made as a copy; it is tried again", "volume", eviction.KeyOfPersistentVolume(&c).String(), "of", c.CloneOf, "kind", c.Kind, "in", b.delay)
	return true
}
