package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// releaseBudget is how long one round may spend on releases before a new round observes the node, because
	// room may be needed meanwhile.
	releaseBudget = 5 * time.Second
	// healBudget is how long one round may spend on heal.
	healBudget = 5 * time.Second
)

// round observes the node, acts and reports. It may be killed at any instant: each round repeats unfinished
// steps, and none acts on an earlier round's decisions. All but the report times out after d.roundTime.
func (d *Daemon) round(unbounded context.Context) (observation, error) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(unbounded, d.roundTime)
	defer cancel()
	d.thaw(ctx)
	d.attachLoops(ctx)
	d.declare(ctx) // first, so that the report includes the groups it creates
	f, err := d.observe(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return f, ctx.Err() // the daemon stops
	}
	d.ahead.setRound(f, err)
	switch {
	case err != nil:
		d.clearQueues()
	case d.cfg.DryRun:
		d.announcePlan(ctx, f)
	default:
		d.enqueue(ctx, f)
		d.enqueueCreates(f)
		d.enqueueTrims(ctx, f)
	}
	// The report is published before any PersistentVolume is deleted: it no longer counts the room of a volume
	// to be released as promised to its claim. Otherwise that room would be promised again as soon as the
	// PersistentVolume is gone, while the volume still holds it.
	published := d.publishInTime(unbounded, f, err)
	if err == nil && published == nil && !d.cfg.DryRun {
		d.release(ctx, f)
		d.undelete(ctx, f)
		d.charge(ctx, f)
		d.answerRequests(ctx, f)
		d.evictReplicas(ctx, f)
	}
	if err == nil {
		d.limit(f)
		d.announceObservation(ctx, f)
	}
	d.out.Metrics.setToolsMissing(d.idleWithoutTools())
	d.out.Metrics.round(f, err, published, time.Since(start))
	d.announceOutcome(ctx, err)
	d.announcePublished(ctx, published)
	d.announceReady(err, published)
	if err == nil {
		err = published
	}
	return f, err
}

// announceReady calls Ready after a round that succeeded and whose report was published. It also does so after a
// failed round if the host lacks programs and the report was published: the daemon can do nothing about that, and
// such a node must not stop the rollout of the DaemonSet.
func (d *Daemon) announceReady(failed, published error) {
	if d.out.Ready == nil || published != nil {
		return
	}
	if failed == nil || len(d.cfg.Missing()) > 0 {
		d.out.Ready()
	}
}

// idleWithoutTools reports whether the host lacks programs and has no PersistentVolume: such a node need not work. If
// the PersistentVolumes are unknown, it is assumed to have some.
func (d *Daemon) idleWithoutTools() bool {
	known, synced := d.watches.persistentVolumes()
	return synced && len(known) == 0 && len(d.cfg.Missing()) > 0
}

// announceOutcome logs when rounds begin to fail, when the reason changes, and when they succeed again.
func (d *Daemon) announceOutcome(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	switch {
	case err == nil && d.dedupe.end("round"):
		log.Info("Rounds succeed again")
	case err != nil && d.dedupe.note("round", reasonOf(err), d.cfg.Now()):
		log.Error(err, "A round has failed; it is retried, and nothing is released, evicted or removed meanwhile", "reason", reasonOf(err))
	case err != nil:
		log.V(1).Info("A round has failed again", "reason", reasonOf(err), "err", err.Error())
	}
}

// announcePublished is announceOutcome for the writing of the report.
func (d *Daemon) announcePublished(ctx context.Context, err error) {
	log := klog.FromContext(ctx)
	switch {
	case err == nil && d.dedupe.end("publish"):
		log.Info("The NodeStorage of this node can be written again")
	case err != nil && d.dedupe.note("publish", "", d.cfg.Now()):
		log.Error(err, "The NodeStorage of this node could not be written; it is retried", "nodestorage", d.cfg.Node)
	}
}

// announcePlan logs what would be released and evicted without --dry-run.
func (d *Daemon) announcePlan(ctx context.Context, f observation) {
	log := klog.FromContext(ctx)
	for _, v := range f.verdicts {
		if v.Action == eviction.ActionRelease && d.dedupe.note("dry release "+string(v.PersistentVolume.UID), string(v.To), f.at) {
			log.Info("Would release a volume (dry run)", "volume", eviction.KeyOfPersistentVolume(&v.PersistentVolume).String(), "to", v.To, "why", v.Why)
		}
	}
	for _, e := range f.result.ReplicaEvictions {
		if d.dedupe.note("dry replica eviction "+e.Volume.UUID, "", f.at) {
			log.Info("Would request the eviction of a replica (dry run)", "volume", eviction.KeyOf(&e.Volume).String(), "why", e.Message)
		}
	}
	for _, e := range f.result.Evictions {
		if d.dedupe.note("dry eviction "+e.Volume.UUID, string(e.Reason), f.at) {
			log.Info("Would evict a volume (dry run)", "volume", eviction.KeyOf(&e.Volume).String(), "reason", e.Reason, "why", e.Message)
		}
	}
}

// release releases the volumes that the API has positively given up. A failure does not hold up the others, so
// releases that have failed before come last.
func (d *Daemon) release(ctx context.Context, f observation) {
	log := klog.FromContext(ctx)
	deadline := time.Now().Add(releaseBudget)
	for _, v := range d.failedLast(f.verdicts) {
		id := string(v.PersistentVolume.UID)
		if v.Action != eviction.ActionRelease || !f.confirmed {
			continue
		}
		if d.releaseRetries.waits(id, f.at) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		if time.Now().After(deadline) {
			d.kick()
			return
		}
		if err := d.releaseOne(ctx, f, v); err != nil {
			b := d.releaseRetries.add(id, d.cfg.Now(), err.Error())
			if d.releaseRetries.isTransient(err, b) {
				log.V(1).Info("A volume is not released yet; it is checked again", "persistentvolume", v.PersistentVolume.PV, "err", err.Error())
				continue
			}
			d.out.Metrics.releaseFailed()
			if d.dedupe.note("release "+id, err.Error(), f.at) {
				log.Error(err, "A volume could not be released; it is retried", "volume", eviction.KeyOfPersistentVolume(&v.PersistentVolume).String(), "persistentvolume", v.PersistentVolume.PV, "in", b.delay)
				d.events.onVolume(f.objects[v.PersistentVolume.PV], warning, "VolumeNotReleased", fmt.Sprintf("%v; it is retried", err))
			}
			continue
		}
		d.releaseRetries.clear(id)
		d.dedupe.end("release " + id)
	}
}

// failedLast returns the verdicts in the order in which they are carried out.
func (d *Daemon) failedLast(verdicts []eviction.Verdict) []eviction.Verdict {
	out := slices.Clone(verdicts)
	slices.SortStableFunc(out, func(a, b eviction.Verdict) int {
		return cmp.Compare(d.releaseRetries.times(string(a.PersistentVolume.UID)), d.releaseRetries.times(string(b.PersistentVolume.UID)))
	})
	return out
}

// keepsPV reports whether the PersistentVolume of a replica must stay until the released volume is removed,
// because the node's next replica of the dataset reuses the volume's name. was is the volume's state in the
// inventory.
func keepsPV(f observation, c persistentvolume.Volume) (was volume.State, yes bool) {
	if c.Kind != volume.Dataset {
		return "", false
	}
	for i := range f.inventory.Volumes {
		v := &f.inventory.Volumes[i]
		if eviction.KeyOf(v) == eviction.KeyOfPersistentVolume(&c) && v.State != volume.Retained {
			return v.State, c.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		}
	}
	return "", false
}

// currentAsJudged checks, right before the volume's state changes, that its PersistentVolume is still what the round
// has judged: its policy may have become Retain since. If it has changed, the error is a conflict. currentAsJudged
// returns the whole object, which the watch's cache does not keep.
func (d *Daemon) currentAsJudged(ctx context.Context, seen *corev1.PersistentVolume, same func(seen, now *corev1.PersistentVolume) bool) (*corev1.PersistentVolume, error) {
	now, err := d.api.Volume(ctx, seen.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil || !same(seen, now) {
		return nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), seen.Name, errors.New("it has changed since it was judged"))
	}
	return now, nil
}

// releaseOne changes the volume's state, and then deletes the PersistentVolume. It removes the finalizer last,
// when the new state on the node is durable without the API.
//
// If the inventory has the volume, its PersistentVolume is deleted in a later round, when the report lists the
// volume with the PersistentVolume's data: the volume of a claim is always in one of the two, and the data
// survives this process. A volume for which the report's bounds leave no room is still counted there, so that
// no other volume of the claim is mistaken for its last.
func (d *Daemon) releaseOne(ctx context.Context, f observation, v eviction.Verdict) error {
	c := v.PersistentVolume
	object := f.objects[c.PV]
	if object == nil || object.UID != c.UID {
		return fmt.Errorf("release volume %s: its PersistentVolume %s is not in this round's list", eviction.KeyOfPersistentVolume(&c), c.PV)
	}
	whole, err := d.currentAsJudged(ctx, object, same)
	if err != nil {
		return err
	}
	seen, said := inventoried(f.inventory, c), releasedClaim{whole.UID, whole.Spec.ClaimRef, originOf(c, whole)}
	reported := seen != nil && seen.State == v.To && d.releasedClaims.has(seen.UUID, said)
	if !reported {
		if err := d.engine.Release(ctx, refOfClaim(c), v.To, c.Disposal); err != nil {
			return err
		}
		if seen != nil {
			d.releasedClaims.note(seen.UUID, seen.Pool(), said)
			d.noteKeptChecked(*seen, c)
		}
	}
	if was, yes := keepsPV(f, c); yes {
		if was != v.To {
			d.kick() // the volume may be removed now, and no change in the API would trigger a round
		}
		return nil
	}
	switch {
	case reported:
		return d.api.DeleteReleased(ctx, object)
	case seen != nil:
		d.kick() // the next report lists the volume
	default:
		if err := d.api.DeleteReleased(ctx, object); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Volume released", "volume", eviction.KeyOfPersistentVolume(&c).String(), "to", v.To, "persistentvolume", c.PV, "why", v.Why)
	d.out.Metrics.released(v.To)
	d.events.onVolume(object, normal, "VolumeReleased", v.Why)
	return nil
}

// inventoried returns the volume of a PersistentVolume from the inventory, in the pool where the engine expects
// it; nil if there is none, or it is doomed already.
func inventoried(in inventory.Inventory, c persistentvolume.Volume) *inventory.Volume {
	for i := range in.Volumes {
		v := &in.Volumes[i]
		if v.State != volume.Doomed && eviction.KeyOf(v) == eviction.KeyOfPersistentVolume(&c) && v.DirectoryPool == c.Shape.DirectoryPool {
			return v
		}
	}
	return nil
}
