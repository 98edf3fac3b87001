package nodeagent

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

const (
	// maxAheadAge is the greatest age of a PersistentVolume whose volume is created ahead: its pod is still on its
	// way to the node. A watch that was cut off shows older objects as if they were new.
	maxAheadAge = time.Minute
	// maxOffered bounds the PersistentVolumes that wait. The volumes of the others are created by their
	// mounts.
	maxOffered = 16
	// checkWantedTimeout bounds the request whether a volume is still wanted, because a mount of the volume waits
	// meanwhile, and mounts need no API server.
	checkWantedTimeout = 5 * time.Second
)

// An aheadCreator creates the volumes of new claims as soon as their PersistentVolumes appear, while the scheduler and
// kubelet prepare their pods, so that the first mounts find existing volumes. It only saves time: it tries each
// volume once, and the first mount creates the others, or reports why it cannot. See
// docs/decisions/021-volumes-ahead-of-their-pods.md.
type aheadCreator struct {
	daemon *Daemon
	seen   atomic.Pointer[roundPlan] // of the last round; nil if it failed
	queue  chan *corev1.PersistentVolume
}

// A roundPlan is the view and the plan of a round.
type roundPlan struct {
	view   eviction.View
	result eviction.Result
}

// newAheadCreator returns nil for a dry run. A nil aheadCreator does nothing.
func newAheadCreator(d *Daemon) *aheadCreator {
	if d.cfg.DryRun {
		return nil
	}
	return &aheadCreator{daemon: d, queue: make(chan *corev1.PersistentVolume, maxOffered)}
}

// setRound stores the view and the plan of a round, or nil if it failed.
func (a *aheadCreator) setRound(f observation, err error) {
	switch {
	case a == nil:
	case err != nil:
		a.seen.Store(nil)
	default:
		a.seen.Store(&roundPlan{f.view, f.result})
	}
}

// offer queues a PersistentVolume that has appeared, unless the queue is full. It never blocks.
func (a *aheadCreator) offer(object *corev1.PersistentVolume) {
	if a == nil || a.daemon.cfg.Now().Sub(object.CreationTimestamp.Time).Abs() > maxAheadAge {
		return
	}
	select {
	case a.queue <- object:
	default:
	}
}

// run creates volumes, one after the other, until ctx ends.
func (a *aheadCreator) run(ctx context.Context) {
	if a == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case object := <-a.queue:
			a.create(ctx, object)
		}
	}
}

func (a *aheadCreator) create(ctx context.Context, object *corev1.PersistentVolume) {
	c, err := persistentvolume.Parse(object)
	if err != nil || !a.mayCreate(object, &c) {
		return
	}
	log := klog.FromContext(ctx).WithValues("volume", eviction.KeyOfPersistentVolume(&c).String(), "persistentvolume", c.PV)
	err = a.daemon.engine.CreateAhead(ctx, specOf(&c), func(ctx context.Context) error { return a.checkWanted(ctx, object) })
	switch {
	case err == nil:
		log.Info("Volume created ahead of its first mount")
	case ctx.Err() != nil, errors.Is(err, errNotWanted):
	default:
		log.Info("A volume could not be created ahead of its first mount; its first mount creates it, or reports the error", "err", err.Error())
	}
}

// mayCreate reports whether the claim's volume may be created before its first mount. Only a PersistentVolume that is
// not bound yet and has the claimRef that the provisioner writes, with UID and resourceVersion, is of a new
// claim. An object that was written by hand, restored from a backup or moved to the other door may be for a
// volume that is to be restored.
//
// While volumes of the group are copied, pods may be frozen, so LVM is left to the copies.
func (a *aheadCreator) mayCreate(object *corev1.PersistentVolume, c *persistentvolume.Volume) bool {
	seen, ref := a.seen.Load(), object.Spec.ClaimRef
	if seen == nil || ref == nil || ref.UID == "" || ref.ResourceVersion == "" || !c.HasFinalizer {
		return false
	}
	if phase := object.Status.Phase; phase != "" && phase != corev1.VolumePending {
		return false
	}
	if j, busy := a.daemon.createQueue.at(); busy && j.pv.Group == c.Group {
		return false
	}
	return eviction.MayCreateAhead(seen.view, seen.result, c)
}

// checkWanted asks the API server, under the volume's lock, so that any later release of the volume finds it
// created.
func (a *aheadCreator) checkWanted(ctx context.Context, object *corev1.PersistentVolume) error {
	ctx, cancel := context.WithTimeout(ctx, checkWantedTimeout)
	defer cancel()
	now, err := a.daemon.api.Volume(ctx, object.Name)
	if apierrors.IsNotFound(err) || err == nil && now.UID != object.UID {
		return errNotWanted
	}
	if err != nil {
		return err
	}
	c, err := persistentvolume.Parse(now)
	if err == nil && (c.Deleting || !c.Usable()) {
		return errNotWanted
	}
	return err
}
