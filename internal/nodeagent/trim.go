package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Trimmer discards the unused blocks of volumes' file systems: *node.Engine, in production.
type Trimmer interface {
	// Trim discards the free blocks of a mounted volume, at most rate bytes per second, and returns how much it
	// has discarded, even with an error.
	Trim(ctx context.Context, ref node.Ref, rate volume.Bytes) (volume.Bytes, error)
	// TrimmedSince returns since when trims are on record.
	TrimmedSince(ctx context.Context) (time.Time, error)
}

// Trimming configures which volumes are trimmed, how often and how fast. A volume's class may set how often
// (volume.Trim), whatever its layout.
type Trimming struct {
	Trimmer  Trimmer       // nil: nothing is trimmed
	Interval time.Duration // between two trims of a volume; 0: nothing is trimmed
	Thick    bool          // also volumes that are not thin, for the sake of their disks
	Rate     volume.Bytes  // bytes per second; 0: no limit
}

// intervalOf returns the time between two trims of a volume whose class says this; 0: it is not trimmed. An
// invalid volume.Trim also means 0, because the user wanted another interval than the default.
func (t Trimming) intervalOf(v *inventory.Volume, class string) time.Duration {
	trim, err := volume.ParseTrim(pv.AnnotationTrim, class)
	switch {
	case v.Layout == volume.Directory:
		return 0 // its file system is shared
	case err != nil || trim == volume.TrimNever:
		return 0
	case trim == volume.TrimDaily:
		return 24 * time.Hour
	case trim == volume.TrimWeekly:
		return 7 * 24 * time.Hour
	case v.Layout == volume.Thin || t.Thick:
		return t.Interval
	}
	return 0
}

// dueTrims returns the volumes to be trimmed now, the most overdue first. They are mounted, ready, this
// cluster's, neither encrypted nor raw, have no problem, and are not the origin of a copy-on-write snapshot, which
// would have to store the discarded blocks. classes are the settings on the PersistentVolumes.
func (t Trimming) dueTrims(in inventory.Inventory, classes map[eviction.Key]string, cluster string, since, now time.Time) []inventory.Volume {
	if t.Interval <= 0 {
		return nil
	}
	var due []inventory.Volume
	for _, v := range in.Volumes {
		interval := t.intervalOf(&v, classes[eviction.KeyOf(&v)])
		wanted := v.State == volume.Ready && v.Cluster == cluster && v.Problem == "" && len(v.Mounts) > 0 && !v.Encrypted && v.FSType != volume.Raw && !v.HasSnapshots && interval > 0
		if wanted && trimSlot(v.UUID, interval, now).After(lastTrim(v, since, now)) {
			due = append(due, v)
		}
	}
	slices.SortFunc(due, func(a, b inventory.Volume) int {
		return cmp.Or(lastTrim(a, since, now).Compare(lastTrim(b, since, now)), cmp.Compare(a.UUID, b.UUID))
	})
	return due
}

// trimSlot returns the last time, up to now, at which a volume was due. The times of a volume depend on its
// UUID, so that trims on a node, and in a cluster, are spread over the interval, whenever daemons start. A
// volume whose time passed while no daemon ran is due as soon as one runs.
func trimSlot(uuid string, interval time.Duration, now time.Time) time.Time {
	h := fnv.New64a()
	_, _ = h.Write([]byte(uuid))
	phase := time.Duration(h.Sum64() % uint64(interval))
	return now.Add(-((time.Duration(now.UnixNano()) - phase) % interval))
}

// lastTrim returns the time from which a volume's next trim is due: its last trim or, without one, its creation
// or the start of the records, whichever is later. A time in the future counts as zero.
func lastTrim(v inventory.Volume, since, now time.Time) time.Time {
	if v.LastTrimmed.After(now) {
		return time.Time{}
	}
	if !v.LastTrimmed.IsZero() {
		return v.LastTrimmed
	}
	if v.Created.After(since) {
		since = v.Created
	}
	if since.After(now) {
		return time.Time{}
	}
	return since
}

// notTrimmed returns why a volume is not trimmed although its PersistentVolume sets an interval.
func notTrimmed(v *persistentvolume.Volume) error {
	trim, err := volume.ParseTrim(pv.AnnotationTrim, v.Trim)
	if err == nil && v.Encrypted && trim.Regular() {
		err = &volume.FieldError{Field: pv.AnnotationTrim, Value: v.Trim, Reason: "does nothing for an encrypted volume, which passes no discards on; remove the annotation"}
	}
	if err == nil && v.FSType == volume.Raw && trim.Regular() {
		err = &volume.FieldError{Field: pv.AnnotationTrim, Value: v.Trim, Reason: "does nothing for volumeMode Block, where only the pod knows what it does not use; remove the annotation"}
	}
	return err
}

// enqueueTrims passes the due volumes to their queue, which trims one at a time.
func (d *Daemon) enqueueTrims(ctx context.Context, f observation) {
	t := d.cfg.Trim
	if t.Trimmer == nil || t.Interval <= 0 {
		return
	}
	since, err := t.Trimmer.TrimmedSince(ctx)
	if err != nil {
		if d.dedupe.note("trims", err.Error(), f.at) {
			klog.FromContext(ctx).Error(err, "Trimming is off: the times of trims cannot be recorded")
		}
		return
	}
	classes := map[eviction.Key]string{}
	for i := range f.view.PersistentVolumes {
		c := &f.view.PersistentVolumes[i]
		if c.Placeholder {
			continue // the PersistentVolume of the volume itself has the setting
		}
		classes[eviction.KeyOfPersistentVolume(c)] = c.Trim
	}
	now, busy := d.trimmer.at()
	var due []inventory.Volume
	for _, v := range t.dueTrims(f.inventory, classes, d.cluster, since, f.at) {
		if !d.trimRetries.waits(v.UUID, f.at) && (!busy || now.UUID != v.UUID) {
			due = append(due, v)
		}
	}
	d.trimmer.set(due)
}

// trim trims one volume. It is the work of the trim queue.
func (d *Daemon) trim(ctx context.Context, v inventory.Volume) {
	log, name := klog.FromContext(ctx), eviction.KeyOf(&v).String()
	start := time.Now()
	discarded, err := d.cfg.Trim.Trimmer.Trim(ctx, refOf(v), d.cfg.Trim.Rate)
	d.out.Metrics.trimmed(v.Pool(), discarded, err == nil)
	topic, now := "trim "+v.UUID, d.cfg.Now()
	switch {
	case err == nil:
		d.trimRetries.clear(v.UUID)
		d.dedupe.end(topic)
		log.Info("Volume trimmed", "volume", name, "discarded", discarded.String(), "took", time.Since(start).Round(time.Millisecond).String())
		d.kick() // the pool has more room
		return
	case ctx.Err() != nil:
		return // the daemon stops; the next process starts the trim again
	}
	b := d.trimRetries.add(v.UUID, now, err.Error())
	switch {
	case errors.Is(err, node.ErrNotMounted):
		log.V(1).Info("A volume is not mounted any more and is trimmed when it is again", "volume", name)
	case !d.dedupe.note(topic, err.Error(), now):
	case errors.Is(err, mount.ErrCannotTrim):
		log.Info("A volume cannot be trimmed", "volume", name, "err", err.Error())
	default:
		log.Error(err, "A volume could not be trimmed; it is retried", "volume", name, "in", b.delay)
	}
	if !errors.Is(err, node.ErrNotMounted) && !errors.Is(err, mount.ErrCannotTrim) {
		d.out.Metrics.trimFailed()
	}
}
