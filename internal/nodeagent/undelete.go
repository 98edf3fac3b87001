package nodeagent

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The reasons of the events about volumes that are brought back.
const (
	undeleted    = "VolumeUndeleted"
	notUndeleted = "VolumeNotUndeleted"
)

// undelete brings back volumes for which a person has created a PersistentVolume with pv.AnnotationUndelete,
// and reports success or failure. An evicted volume is not created again, because the PersistentVolume names
// its file system, and the engine checks that.
func (d *Daemon) undelete(ctx context.Context, f observation) {
	d.announceUndeleted(ctx, f)
	deadline := time.Now().Add(releaseBudget)
	there := map[string]bool{}
	for _, u := range eviction.Undeletes(f.view) {
		id := string(u.PersistentVolume.UID)
		there[id] = true
		if d.undeleteRetries.waits(id, f.at) {
			continue
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			d.kick()
			return
		}
		if err := d.undeleteOne(ctx, f, u); err != nil {
			b := d.undeleteRetries.add(id, d.cfg.Now(), err.Error())
			// kubectl flexlvm undelete fails at such an event. The PersistentVolume may be newer than the inventory, as
			// when a volume has just been adopted.
			if !d.undeleteRetries.isTransient(err, b) && (!u.Evicted || b.times > 1) {
				d.announceNotUndeleted(ctx, f, u, err)
			}
			continue
		}
		d.undeleteRetries.clear(id)
		d.dedupe.end("undelete " + id)
		d.dedupe.end(claimTopic(u.PersistentVolume.UID, notUndeleted))
	}
	d.undeleteRetries.keepOnly(there)
}

// undeleteOne makes the volume ready and then removes the annotation. Killed in between, it leaves a ready
// volume, and the next round goes on from there.
func (d *Daemon) undeleteOne(ctx context.Context, f observation, u eviction.Undelete) error {
	c := u.PersistentVolume
	object := f.objects[c.PV]
	if u.Evicted {
		return fmt.Errorf("%s%s. Delete its claim and PersistentVolume %s, and restore the data from a backup", u.Why, d.whyEvicted(c.Volume), c.PV)
	}
	if u.Why != "" {
		return fmt.Errorf("%s; it is retried", u.Why)
	}
	if err := d.sameCluster(ctx); err != nil {
		return err
	}
	now, err := d.currentAsJudged(ctx, object, sameVolume)
	if err != nil {
		return err
	}
	ref := refOfClaim(c)
	ref.UUID = u.UUID
	if _, err := d.engine.SetStateOf(ctx, ref, c.FS, volume.Ready); err != nil {
		return err
	}
	key := eviction.KeyOfPersistentVolume(&c).String()
	message := fmt.Sprintf("volume %s is ready again: PersistentVolume %s was made to bring it back", key, c.PV)
	if d.dedupe.note("undeleted "+string(c.UID), "", f.at) {
		klog.FromContext(ctx).Info("Volume brought back", "volume", key, "was", u.State, "persistentvolume", c.PV)
		d.events.onVolume(object, normal, undeleted, message)
		if !d.events.onClaim(ctx, claimOfObject(now), normal, undeleted, message) {
			d.undeleted[object.UID] = message
		}
		d.kick() // so that the report includes it
	}
	return d.removeUndeleteAnnotation(ctx, now)
}

// announceUndeleted sends the events about restored volumes to claims that were not bound when the volumes became
// ready.
func (d *Daemon) announceUndeleted(ctx context.Context, f observation) {
	waiting := map[types.UID]string{}
	for _, object := range f.objects {
		message, there := d.undeleted[object.UID]
		if there && !d.events.onClaim(ctx, claimOfObject(object), normal, undeleted, message) {
			waiting[object.UID] = message
		}
	}
	d.undeleted = waiting
}

// removeUndeleteAnnotation removes the annotation from a PersistentVolume whose volume is ready. Others may write to
// the object at the same time.
func (d *Daemon) removeUndeleteAnnotation(ctx context.Context, object *corev1.PersistentVolume) error {
	for tries := 1; ; tries++ {
		err := d.api.Annotate(ctx, object, map[string]*string{pv.AnnotationUndelete: nil})
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) || tries == 3 {
			return err
		}
		if object, err = d.currentAsJudged(ctx, object, sameVolume); err != nil {
			return err
		}
	}
}

// sameVolume reports whether two states of a PersistentVolume agree about its volume. A usable one may have
// been bound in between: kube-controller-manager writes to new objects, so another resourceVersion alone does
// not require another round.
func sameVolume(seen, now *corev1.PersistentVolume) bool {
	was, err := persistentvolume.Parse(seen)
	if err != nil {
		return false
	}
	is, err := persistentvolume.Parse(now)
	if err != nil {
		return false
	}
	if was.Usable() && is.Usable() {
		is.Phase = was.Phase
	}
	return is == was && now.Labels[pv.LabelNode] == seen.Labels[pv.LabelNode]
}

// whyEvicted returns the reason for a volume's eviction from the history.
func (d *Daemon) whyEvicted(name volume.Name) string {
	evictions, _ := d.history.evictions()
	for _, e := range evictions {
		if e.Name == string(name) {
			return fmt.Sprintf(" (at %s: %s)", e.Time.UTC().Format(time.RFC3339), e.Message)
		}
	}
	return ""
}

func (d *Daemon) announceNotUndeleted(ctx context.Context, f observation, u eviction.Undelete, err error) {
	c := u.PersistentVolume
	object := f.objects[c.PV]
	if d.dedupe.note("undelete "+string(c.UID), err.Error(), f.at) {
		klog.FromContext(ctx).Error(err, "A volume could not be brought back", "volume", eviction.KeyOfPersistentVolume(&c).String(), "persistentvolume", c.PV)
		d.events.onVolume(object, warning, notUndeleted, err.Error())
	}
	d.warnClaim(ctx, object, notUndeleted, err.Error(), err.Error())
}
