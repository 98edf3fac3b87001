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
	// newFor is how young a PersistentVolume is whose volume is made ahead: its pod is still on
	// its way to the node. A watch that was cut off shows older ones as if they had just appeared.
	newFor = time.Minute
	// mostOffered is how many may wait to be made ahead. The others are made by their mounts.
	mostOffered = 16
	// askTime is how long the API server has to say that a volume is still wanted: a mount of it
	// waits meanwhile, and mounts need no API server.
	askTime = 5 * time.Second
)

// A maker makes the volumes of new claims as soon as their PersistentVolumes appear, while the
// scheduler and kubelet are not ready to start their pods, so that the first mounts find them
// made. It only saves time: it tries each once, and what it does not make, for whatever reason,
// the first mount makes, or says why it cannot. See docs/decisions/021-volumes-ahead-of-their-pods.md.
type maker struct {
	daemon *Daemon
	seen   atomic.Pointer[sight] // of the last round; nil if that has failed
	waits  chan *corev1.PersistentVolume
}

// A sight is what a round has seen and decided.
type sight struct {
	view   eviction.View
	result eviction.Result
}

// newMaker returns nil for a daemon that changes nothing. A nil maker does nothing.
func newMaker(d *Daemon) *maker {
	if d.cfg.DryRun {
		return nil
	}
	return &maker{daemon: d, waits: make(chan *corev1.PersistentVolume, mostOffered)}
}

// look notes what a round has seen, or that it has failed.
func (m *maker) look(f observation, err error) {
	switch {
	case m == nil:
	case err != nil:
		m.seen.Store(nil)
	default:
		m.seen.Store(&sight{f.view, f.result})
	}
}

// offer takes note of a PersistentVolume that has appeared. It never blocks.
func (m *maker) offer(object *corev1.PersistentVolume) {
	if m == nil || m.daemon.cfg.Now().Sub(object.CreationTimestamp.Time).Abs() > newFor {
		return
	}
	select {
	case m.waits <- object:
	default:
	}
}

// run makes volumes, one after the other, until ctx ends.
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
		log.Info("Volume made ahead of its first mount")
	case ctx.Err() != nil, errors.Is(err, errNotWanted):
	default:
		log.Info("A volume could not be made ahead; its first mount makes it, or says what is wrong", "err", err.Error())
	}
}

// may reports whether the volume of a claim may be made ahead. Only a PersistentVolume that is
// not bound yet and refers to its claim as the provisioner does, with UID and resourceVersion,
// is of a new claim: one written by hand, restored from a backup or moved to the other door may be
// of a volume that is to come back.
//
// While volumes of the group are copied, pods may be held still, and LVM is left to that.
func (m *maker) may(object *corev1.PersistentVolume, c *persistentvolume.Volume) bool {
	seen, ref := m.seen.Load(), object.Spec.ClaimRef
	if seen == nil || ref == nil || ref.UID == "" || ref.ResourceVersion == "" || !c.HasFinalizer {
		return false
	}
	if phase := object.Status.Phase; phase != "" && phase != corev1.VolumePending {
		return false
	}
	if j, busy := m.daemon.copier.at(); busy && j.pv.Group == c.Group {
		return false
	}
	return eviction.MayMakeAhead(seen.view, seen.result, c)
}

// wanted asks the API server itself, under the volume's lock: whatever gives the volume up from
// then on finds it made.
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
