package iolimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/pause"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// groupRetry is the delay before another search for a pod's control group: the kubelet may
	// mount a volume an instant before it creates the group.
	groupRetry = time.Second
	// settle is how long a pass waits for more changes after the first, because they come in
	// bursts.
	settle = 200 * time.Millisecond
	// groupTimeout is how long a pod with a limited volume may have no control group before that
	// is reported: a pod that is ending has none for a moment.
	groupTimeout = 30 * time.Second
)

// Host is the node whose pods are limited. With the zero value, no pod is limited.
type Host struct {
	Groups PodGroups
	// Mounts returns every mount of the host, by device number.
	Mounts func() (map[uint64][]mount.Point, error)
	// Watch calls changed after each change of the host's mounts, until ctx ends.
	Watch func(ctx context.Context, changed func()) error
}

// PodGroups are the control groups of the node's pods. In production it is *cgroup.Tree.
type PodGroups interface {
	// Pods returns the groups, by UID, of those pods that have one.
	Pods(uids map[string]bool) (map[string]string, error)
	// IOLimits returns a group's limits by device number.
	IOLimits(group string) (map[uint64]volume.IOLimits, error)
	// SetIOLimits sets all of a group's limits on one device.
	SetIOLimits(group string, device uint64, limits volume.IOLimits) error
}

// A Limiter applies the I/O limits in the annotations of volumes to pods. It runs beside the
// daemon's rounds, so that its failures and delays do not hold them up, and also between rounds
// whenever something is mounted, without LVM. The kernel keeps the limits, so they last while no
// daemon runs.
type Limiter struct {
	host    Host
	now     func() time.Time
	wakeUps chan struct{}

	mu     sync.Mutex
	latest *Desired // nil until a round has succeeded

	// The following fields belong to the goroutine of Run.
	left   bool                 // limits may be in force though none is desired
	missed map[string]time.Time // pods without a group, and since when
}

// Desired is the state that the API declares.
type Desired struct {
	PersistentVolumes []persistentvolume.Volume
	// Partial: some PersistentVolumes cannot be read.
	Partial bool
	// Report is called with the outcome of each pass, on the goroutine of Run.
	Report func(context.Context, Outcome)
}

// An Outcome is the outcome of one pass.
type Outcome struct {
	Applied int              // number of pods' limits on volumes that are in force
	Failed  map[string]error // by PersistentVolume
}

// New returns a limiter, which does nothing before Run.
func New(host Host, now func() time.Time) *Limiter {
	return &Limiter{host: host, now: now, wakeUps: make(chan struct{}, 1), left: true, missed: map[string]time.Time{}}
}

// Update sets the desired state, and requests a pass.
func (l *Limiter) Update(d Desired) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.latest = &d
	l.mu.Unlock()
	l.wake()
}

func (l *Limiter) wake() {
	select {
	case l.wakeUps <- struct{}{}:
	default:
	}
}

// Run runs passes until ctx ends. It watches mounts once the first limit is desired.
func (l *Limiter) Run(ctx context.Context) {
	if l == nil {
		return
	}
	var watch sync.WaitGroup
	defer watch.Wait()
	watching, again := false, false
	for l.await(ctx, again) {
		var limited bool
		limited, again = l.reconcile(ctx)
		if limited && !watching {
			watching = true
			watch.Go(func() {
				if err := l.host.Watch(ctx, l.wake); err != nil {
					klog.FromContext(ctx).Error(err, "Mounts cannot be watched; new pods get their limits on IO with the next round")
				}
			})
		}
	}
}

// await waits for a wake-up and those that follow it closely or, if again, at most groupRetry. It
// returns false when ctx has ended.
func (l *Limiter) await(ctx context.Context, again bool) bool {
	var retry <-chan time.Time
	if again {
		timer := time.NewTimer(groupRetry)
		defer timer.Stop()
		retry = timer.C
	}
	select {
	case <-ctx.Done():
	case <-retry:
	case <-l.wakeUps:
		_ = pause.For(ctx, settle) // ctx is checked below
	}
	return ctx.Err() == nil
}

// reconcile sets the limits that differ from the desired ones. It reports whether any limit is
// desired, and whether it should run again soon. It may be killed at any instant: the next pass
// finds what is left to do. If no limit is desired, and none can be in force, it does not read the
// node.
func (l *Limiter) reconcile(ctx context.Context) (limited, again bool) {
	l.mu.Lock()
	w := l.latest
	l.mu.Unlock()
	if w == nil {
		return false, false
	}
	limits, failed := readLimits(w.PersistentVolumes)
	left := len(failed) > 0 || w.Partial // their earlier limits are in force
	for _, wanted := range limits {
		limited = limited || !wanted.IsZero()
	}
	r := pass{limits: limits, failed: failed}
	if limited || l.left {
		l.apply(ctx, &r)
		l.left = limited || left || r.unsure
	}
	w.Report(ctx, Outcome{Applied: r.applied, Failed: r.failed})
	return limited, r.again
}

// A pass is one comparison with the node, and its result.
type pass struct {
	limits  map[string]volume.IOLimits // by PersistentVolume
	failed  map[string]error           // by PersistentVolume
	applied int                        // number of pods' limits on volumes that are in force
	unsure  bool                       // a limit that is not desired may be in force
	again   bool
}

// fail records why the limits on a volume are not in force; the first reason is enough.
func (r *pass) fail(m podVolume, err error) {
	if !r.limits[m.pv].IsZero() && r.failed[m.pv] == nil {
		r.failed[m.pv] = fmt.Errorf("pod %s: %w", m.pod, err)
	}
	r.unsure = r.unsure || !neverLimited(err)
}

// neverLimited reports whether err means that nothing on this node can have a limit.
func neverLimited(err error) bool {
	return errors.Is(err, cgroup.ErrVersion) || errors.Is(err, cgroup.ErrNoController)
}

func (l *Limiter) apply(ctx context.Context, r *pass) {
	mounts, err := l.host.Mounts()
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
	groups, err := l.host.Groups.Pods(uids)
	if err != nil {
		for _, m := range mounted {
			r.fail(m, err)
		}
		return
	}
	there := l.observe(mounted, groups, r)
	for _, c := range limitChanges(mounted, r.limits, there) {
		switch err := l.host.Groups.SetIOLimits(groups[c.pod], c.device, c.limits); {
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

// observe returns the limits of pods' groups, and records which pods have no group.
func (l *Limiter) observe(mounted []podVolume, groups map[string]string, r *pass) map[string]map[uint64]volume.IOLimits {
	there := make(map[string]map[uint64]volume.IOLimits, len(groups))
	ill := map[string]error{}
	for pod, group := range groups {
		switch has, err := l.host.Groups.IOLimits(group); {
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
			if l.now().Sub(since) < groupTimeout {
				r.again = true
			} else {
				r.fail(m, errors.New("it has no control group below "+cgroup.Root+" that carries its UID: either it has ended and its volume is not unmounted yet, or the kubelet runs with cgroupsPerQOS: false, which leaves pods without one"))
			}
		}
	}
	l.missed = missed
	return there
}
