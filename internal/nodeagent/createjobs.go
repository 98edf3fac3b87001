package nodeagent

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A createJob is a PersistentVolume whose volume is created before its first mount: a copy, a snapshot, or a
// declared volume.
type createJob struct {
	pv     persistentvolume.Volume
	object *corev1.PersistentVolume
	// group lists all snapshots of the group, if this one is taken together with others; else nil.
	group []createJob
	// whySourceLost is why the source of this copy has lost its content, according to the source's PersistentVolume.
	whySourceLost string
}

// id returns the UID of the job's PersistentVolume, which identifies its retries.
func (j createJob) id() string { return string(j.pv.UID) }

// topic returns the topic of the job's announcements.
func (j createJob) topic() string { return "make " + j.id() }

// enqueueCreates passes the volumes that are to be created to their queues. A copy of a large volume takes a while,
// because it gets a new log, and full copies may take hours.
func (d *Daemon) enqueueCreates(f observation) {
	var quick, slow []createJob
	atWork, busy := d.createQueue.at()
	slowAtWork, slowBusy := d.slowCreateQueue.at()
	for _, c := range append(eviction.ClonesToCreate(f.view), eviction.LocalVolumesToCreate(f.view)...) {
		if d.createRetries.waits(string(c.UID), f.at) || busy && atWork.pv.UID == c.UID || slowBusy && slowAtWork.pv.UID == c.UID {
			continue
		}
		j := createJob{pv: c, object: f.objects[c.PV], whySourceLost: f.whySourceLost(&c)}
		if c.SnapshotGroup != "" {
			if j.group = groupOf(f, &c); j.group == nil {
				continue
			}
		}
		zeroed := c.CloneOf == "" && c.FSType == volume.Raw
		fullCopy := c.CloneOf != "" && c.Shape.Layout != volume.Thin && c.Kind != volume.Snapshot
		if zeroed || fullCopy {
			slow = append(slow, j)
		} else {
			quick = append(quick, j)
		}
	}
	d.createQueue.set(quick)
	d.slowCreateQueue.set(slow)
}

// runCreateJob runs one job of the create queues.
func (d *Daemon) runCreateJob(ctx context.Context, j createJob) {
	c, log := j.pv, klog.FromContext(ctx)
	if c.Kind == volume.Snapshot {
		d.makeSnapshots(ctx, j)
		return
	}
	if c.Declared && c.CloneOf == "" {
		d.createLocalVolume(ctx, j, specOf(&c))
		return
	}
	err := d.createClone(ctx, j)
	if ctx.Err() != nil {
		return // the daemon stops; the next process or the first mount creates it
	}
	defer d.kick()
	if err == nil {
		d.noteCreated(j)
		log.Info("Volume made as a copy", "volume", eviction.KeyOfPersistentVolume(&c).String(), "of", c.CloneOf, "persistentvolume", c.PV)
		message := "the copy of volume " + string(c.CloneOf) + " is taken: later writes to that volume are not in it"
		d.events.onVolume(j.object, normal, "VolumeCopied", message)
		d.events.onClaim(ctx, claimOfObject(j.object), normal, "VolumeCopied", message)
		return
	}
	if d.noteCreateFailed(ctx, j, "Copy could not be made", err) {
		message := err.Error() + "; it is retried"
		d.events.onVolume(j.object, warning, "VolumeNotCopied", message)
		d.events.onClaim(ctx, claimOfObject(j.object), warning, "VolumeNotCopied", message)
	}
}

// createClone does not copy a snapshot that is recorded as lost, whatever the node shows now: after a reboot, LVM may
// show a snapshot as valid again that is not.
func (d *Daemon) createClone(ctx context.Context, j createJob) error {
	if j.whySourceLost != "" {
		return fmt.Errorf("copy snapshot %s/%s: it is lost, as its PersistentVolume says: %s", j.pv.Group, j.pv.CloneOf, j.whySourceLost)
	}
	return d.engine.CreateCloneAhead(ctx, specOf(&j.pv))
}

// whySourceLost returns why the source of a copy has lost its content, according to the source's PersistentVolume;
// empty if it has not, or if the copy no longer needs it.
func (f observation) whySourceLost(c *persistentvolume.Volume) string {
	if c.CloneOf == "" || c.Kind == volume.Snapshot {
		return "" // only a snapshot can be lost, and no snapshot is taken of one
	}
	key := eviction.KeyOfPersistentVolume(c)
	if slices.ContainsFunc(f.inventory.Volumes, func(v inventory.Volume) bool { return eviction.KeyOf(&v) == key && v.Fill == volume.FillCopied }) {
		return ""
	}
	for i := range f.view.PersistentVolumes {
		p := &f.view.PersistentVolumes[i]
		if p.Group == c.Group && p.Volume == c.CloneOf && p.Cluster == c.Cluster && p.Lost != "" {
			return p.Lost
		}
	}
	return ""
}

// specOf returns the spec of the volume that a PersistentVolume describes.
func specOf(c *persistentvolume.Volume) volume.Spec {
	return volume.Spec{
		Group: c.Group, GroupUUID: c.GroupUUID, Name: c.Volume, Size: c.Size, Layout: c.Shape.Layout, ThinPool: c.Shape.ThinPool,
		Stripes: c.Shape.Stripes, StripeKiB: c.Shape.StripeKiB, Mirrors: c.Shape.Mirrors, Reserve: c.Reserve,
		CloneOf: c.CloneOf, Inodes: c.Inodes, FSType: c.FSType, Kind: c.Kind, Cluster: c.Cluster, Namespace: c.ClaimNamespace, Encrypted: c.Encrypted,
	}
}

// noteCreated clears the failures of a job.
func (d *Daemon) noteCreated(j createJob) {
	d.createRetries.clear(j.id())
	d.dedupe.end(j.topic())
}

// noteCreateFailed schedules a job's retry. If the error is new, it logs what has failed, and returns true.
func (d *Daemon) noteCreateFailed(ctx context.Context, j createJob, what string, err error) bool {
	c, now := j.pv, d.cfg.Now()
	b := d.createRetries.add(j.id(), now, err.Error())
	if !d.dedupe.note(j.topic(), err.Error(), now) {
		return false
	}
	log := klog.FromContext(ctx).WithValues("volume", eviction.KeyOfPersistentVolume(&c).String(), "persistentvolume", c.PV)
	if c.CloneOf != "" {
		log = log.WithValues("of", c.CloneOf)
	}
	log.Error(err, what+"; it is retried", "in", b.delay)
	return true
}
