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
	// newFor is the greatest age of a PersistentVolume whose volume is created ahead: its pod is still on its
	// way to the node. A watch that was cut off shows older objects as if they were new.
	newFor = time.Minute
	// mostOffered bounds the PersistentVolumes that wait. The volumes of the others are created by their
	// mounts.
	mostOffered = 16
	// askTime bounds the request whether a volume is still wanted, because a mount of the volume waits
	// meanwhile, and mounts need no API server.
	askTime = 5 * time.Second
)

// A maker creates the volumes of new claims as soon as their PersistentVolumes appear, while the scheduler and
// kubelet prepare their pods, so that the first mounts find existing volumes. It only saves time: it tries each
// volume once, and the first mount creates the others, or reports why it cannot. See
// docs/decisions/021-volumes-ahead-of-their-pods.md.
type maker struct {
	daemon *Daemon
	seen   atomic.Pointer[sight] // of the last round; nil if it failed
	waits  chan *corev1.PersistentVolume
}

// A sight is the view and the plan of a round.
type sight struct {
	view   eviction.View
	result eviction.Result
}

// newMaker returns nil for a dry run. A nil maker does nothing.
func newMaker(d *Daemon) *maker {
	if d.cfg.DryRun {
		return nil
	}
	return &maker{daemon: d, waits: make(chan *corev1.PersistentVolume, mostOffered)}
}

// look stores the view and the plan of a round, or nil if it failed.
func (m *maker) look(f observation, err error) {
	switch {
	case m == nil:
	case err != nil:
		m.seen.Store(nil)
	default:
		m.seen.Store(&sight{f.view, f.result})
	}
}

// offer queues a PersistentVolume that has appeared, unless the queue is full. It never blocks.
func (m *maker) offer(object *corev1.PersistentVolume) {
	if m == nil || m.daemon.cfg.Now().Sub(object.CreationTimestamp.Time).Abs() > newFor {
		return
	}
	select {
	case m.waits <- object:
	default:
	}
}

// run creates volumes, one after the other, until ctx ends.
func (m *maker) run(ctx context.Context) {
	if m == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case object := <-m.waits:
			m.make(ctx, object)
		}
	}
}

func (m *maker) make(ctx context.Context, object *corev1.PersistentVolume) {
	c, err := persistentvolume.Parse(object)
	if err != nil || !m.may(object, &c) {
		return
	}
	log := klog.FromContext(ctx).WithValues("volume", eviction.KeyOfPersistentVolume(&c).String(), "persistentvolume", c.PV)
	err = m.daemon.engine.Prepare(ctx, specOf(&c), func(ctx context.Context) error { return m.wanted(ctx, object) })
	switch {
	case err == nil:
		log.Info("Volume created ahead of its first mount")
	case ctx.Err() != nil, errors.Is(err, errNotWanted):
	default:
		log.Info("A volume could not be created ahead of its first mount; its first mount creates it, or reports the error", "err", err.Error())
	}
}

// may reports whether the claim's volume may be created before its first mount. Only a PersistentVolume that is
// not bound yet and has the claimRef that the provisioner writes, with UID and resourceVersion, is of a new
// claim. An object that was written by hand, restored from a backup or moved to the other door may be for a
// volume that is to be restored.
//
// While volumes of the group are copied, pods may be frozen, so LVM is left to the copies.
func (m *maker) may(object *corev1.PersistentVolume, c *persistentvolume.Volume) bool {
	seen, ref := m.seen.Load(), object.Spec.ClaimRef
	if seen == nil || ref == nil || ref.UID == "" || ref.ResourceVersion == "" || !c.HasFinalizer {
		return false
	}
	if phase := object.Status.Phase; phase != "" && phase != corev1.VolumePending {
		return false
	}
	if j, busy := m.daemon.makeQueue.at(); busy && j.pv.Group == c.Group {
		return false
	}
	return eviction.MayCreateAhead(seen.view, seen.result, c)
}

// wanted asks the API server, under the volume's lock, so that any later release of the volume finds it
// created.
func (m *maker) wanted(ctx context.Context, object *corev1.PersistentVolume) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	now, err := m.daemon.api.Volume(ctx, object.Name)
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
