package gc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// groupRetry is when to look again for a pod's control group: the kubelet may
	// mount a volume an instant before it makes the group.
	groupRetry = time.Second
	// groupPatience is how long a pod that has a limited volume may have no control
	// group before a person should know: one that is ending has none for a moment.
	groupPatience = 30 * time.Second
)

// IO is how a daemon limits the IO of pods. With the zero value it limits none.
type IO struct {
	Groups PodGroups
	// Mounts gives every mount of the host, by the number of the device.
	Mounts func() (map[uint64][]mount.Point, error)
	// Watch calls changed after each change of the host's mounts, until ctx ends.
	Watch func(ctx context.Context, changed func()) error
}

// PodGroups are the control groups of the node's pods: *cgroup.Tree, in
// production.
type PodGroups interface {
	// Pods gives the groups of those of the pods that have one, by UID.
	Pods(uids map[string]bool) (map[string]string, error)
	// IOLimits gives a group's limits by the numbers of the devices.
	IOLimits(group string) (map[uint64]volume.IOLimits, error)
	// SetIOLimits sets all of a group's limits on one device.
	SetIOLimits(group string, device uint64, limits volume.IOLimits) error
}

// A limiter keeps the limits on IO that pods have what their volumes' annotations
// say. It works beside the rounds, so that what fails or takes long here is of no
// matter to them, and between them whenever something is mounted, without LVM. The
// kernel keeps what is in force: it lasts while no daemon runs.
type limiter struct {
	io      IO
	now     func() time.Time
	said    *said
	events  events
	metrics *Metrics
	kicks   chan struct{}

	mu     sync.Mutex
	latest *wishes // nil before a round has succeeded

	// What follows belongs to the goroutine of run.
	left   bool                 // limits may be in force though none is wanted
	missed map[string]time.Time // pods without a group, and since when
}

// wishes are what a round has seen of the API.
type wishes struct {
	claims  []Claim
	objects map[string]*corev1.PersistentVolume
	vague   bool // there are PersistentVolumes that cannot be read
}

func newLimiter(io IO, now func() time.Time, said *said, events events, metrics *Metrics) *limiter {
	return &limiter{
		io: io, now: now, said: said, events: events, metrics: metrics,
		kicks: make(chan struct{}, 1), left: true, missed: map[string]time.Time{},
	}
}

// want takes what a round has seen, and calls for a pass.
func (l *limiter) want(f findings) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.latest = &wishes{claims: f.view.Claims, objects: f.objects, vague: len(f.unreadable) > 0}
	l.mu.Unlock()
	l.kick()
}

func (l *limiter) kick() {
	select {
	case l.kicks <- struct{}{}:
	default:
	}
}

// run works until ctx ends. Mounts are watched from when the first limit is wanted.
func (l *limiter) run(ctx context.Context) {
	if l == nil {
		return
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	watching, again := false, false
	for l.await(ctx, again) {
		var limited bool
		limited, again = l.pass(ctx)
		if limited && !watching {
			watching = true
			watch.Go(func() {
				if err := l.io.Watch(ctx, l.kick); err != nil {
					klog.FromContext(ctx).Error(err, "Mounts cannot be watched; new pods get their limits on IO with the next round")
				}
			})
		}
	}
}

// await waits for a kick and what comes with it, or, if again, a moment. It
// returns false when ctx has ended.
func (l *limiter) await(ctx context.Context, again bool) bool {
	var retry <-chan time.Time
	if again {
		timer := time.NewTimer(groupRetry)
		defer timer.Stop()
		retry = timer.C
	}
	select {
	case <-ctx.Done():
	case <-retry:
	case <-l.kicks:
		swarm := time.NewTimer(settle)
		defer swarm.Stop()
		select {
		case <-ctx.Done():
		case <-swarm.C:
		}
	}
	return ctx.Err() == nil
}

// pass sets what is not as it should be. It tells whether any limit is wanted, and
// whether a pass should follow soon. It may be killed at any instant: the next one
// finds what is left to do. Where no limit is wanted, and none was since the
// daemon's start, it looks at nothing.
func (l *limiter) pass(ctx context.Context) (limited, again bool) {
	l.mu.Lock()
	w := l.latest
	l.mu.Unlock()
	if w == nil {
		return false, false
	}
	limits, failed := readIOLimits(w.claims)
	left := len(failed) > 0 || w.vague // what they said before is in force
	for _, wanted := range limits {
		limited = limited || !wanted.IsZero()
	}
	r := limiting{limits: limits, failed: failed}
	if limited || l.left {
		l.apply(ctx, &r)
		l.left = limited || left || r.unsure
	}
	l.tell(ctx, w, &r)
	return limited, r.again
}

// limiting is one pass and what comes of it.
type limiting struct {
	limits  map[string]volume.IOLimits // by PersistentVolume
	failed  map[string]error           // by PersistentVolume
	applied int                        // pods' limits on volumes that are in force
	unsure  bool                       // a limit that is not wanted may be in force
	again   bool
}

// fail notes why the limits on a volume are not in force; one reason is enough.
func (r *limiting) fail(m podVolume, err error) {
	if !r.limits[m.pv].IsZero() && r.failed[m.pv] == nil {
		r.failed[m.pv] = fmt.Errorf("pod %s: %w", m.pod, err)
	}
	r.unsure = r.unsure || !neverLimited(err)
}

// neverLimited tells of an error that where it occurs nothing can have a limit.
func neverLimited(err error) bool {
	return errors.Is(err, cgroup.ErrVersion) || errors.Is(err, cgroup.ErrNoController)
}

func (l *limiter) apply(ctx context.Context, r *limiting) {
	mounts, err := l.io.Mounts()
	if err != nil {
		for name, wanted := range r.limits {
			if !wanted.IsZero() {
				r.failed[name] = err
			}
		}
		r.unsure = true
		return
	}
	mounted := podVolumes(mounts, r.limits)
	uids := make(map[string]bool, len(mounted))
	for _, m := range mounted {
		uids[m.pod] = true
	}
	groups, err := l.io.Groups.Pods(uids)
	if err != nil {
		for _, m := range mounted {
			r.fail(m, err)
		}
		return
	}
	there := l.look(mounted, groups, r)
	for _, c := range limitChanges(mounted, r.limits, there) {
		switch err := l.io.Groups.SetIOLimits(groups[c.pod], c.device, c.limits); {
		case errors.Is(err, cgroup.ErrGone):
			delete(there, c.pod)
		case err != nil:
			r.fail(c.podVolume, err)
		default:
			klog.FromContext(ctx).Info("Limits on IO set", "persistentvolume", c.pv, "pod", c.pod, "limits", c.limits.String())
		}
	}
	for _, m := range mounted {
		if there[m.pod] != nil && !r.limits[m.pv].IsZero() && r.failed[m.pv] == nil {
			r.applied++
		}
	}
}

// look reads the limits that the groups of pods have.
func (l *limiter) look(mounted []podVolume, groups map[string]string, r *limiting) map[string]map[uint64]volume.IOLimits {
	there := make(map[string]map[uint64]volume.IOLimits, len(groups))
	ill := map[string]error{}
	for pod, group := range groups {
		switch has, err := l.io.Groups.IOLimits(group); {
		case errors.Is(err, cgroup.ErrGone):
		case err != nil:
			ill[pod] = err
		default:
			there[pod] = has
		}
	}
	missed := map[string]time.Time{}
	for _, m := range mounted {
		switch {
		case ill[m.pod] != nil:
			r.fail(m, ill[m.pod])
		case groups[m.pod] == "" && !r.limits[m.pv].IsZero():
			since, known := l.missed[m.pod]
			if !known {
				since = l.now()
			}
			missed[m.pod] = since
			if l.now().Sub(since) < groupPatience {
				r.again = true
			} else {
				r.fail(m, errors.New("it has no control group below "+cgroup.Root+" that bears its UID: either it has ended and its volume is not unmounted yet, or the kubelet runs with cgroupsPerQOS: false, which leaves pods without one"))
			}
		}
	}
	l.missed = missed
	return there
}

// tell says which limits are not in force: once, and again while it lasts.
func (l *limiter) tell(ctx context.Context, w *wishes, r *limiting) {
	log := klog.FromContext(ctx)
	l.metrics.ioLimited(r.applied, len(r.failed))
	for i := range w.claims {
		c := &w.claims[i]
		topic := "io limit " + string(c.UID)
		err := r.failed[c.PV]
		if err == nil {
			if l.said.over(topic) {
				log.Info("Limits on IO are in force again, or not wanted any more", "persistentvolume", c.PV)
			}
			continue
		}
		text := fmt.Sprintf("the limits on the IO of volume %s are not in force: %v", keyOfClaim(c), err)
		if l.said.fresh(topic, text, l.now()) {
			log.Info("Limits on IO are not in force", "persistentvolume", c.PV, "why", err.Error())
			l.events.onVolume(w.objects[c.PV], warning, "IOLimitNotApplied", text)
			l.events.onClaim(ctx, claimOfObject(w.objects[c.PV]), warning, "IOLimitNotApplied", text)
		}
	}
}
