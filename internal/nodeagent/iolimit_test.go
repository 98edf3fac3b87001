package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/cgroup"
	"github.com/flexlvm/flexlvm/internal/iolimit"
	"github.com/flexlvm/flexlvm/internal/mount"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pods holds the mounts and control groups of a node in memory.
type pods struct {
	mu     sync.Mutex
	mounts map[uint64][]mount.Point
	groups map[string]map[uint64]volume.IOLimits // by pod
	writes []string
	looks  int // number of calls
	// fault returns the error of a call; nil: no call fails.
	fault   func(call string) error
	changed func() // callback of the watch, once it runs
}

func newPods() *pods {
	return &pods{mounts: map[uint64][]mount.Point{}, groups: map[string]map[uint64]volume.IOLimits{}}
}

func (p *pods) io() iolimit.Host {
	return iolimit.Host{Groups: p, Mounts: p.allMounts, Watch: p.watch}
}

func (p *pods) with(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// mount mounts a volume into a pod and notifies the watch.
func (p *pods) mount(pod, pv string, device uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path := fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/flexlvm.io~flexlvm/%s", pod, pv)
	p.mounts[device] = append(p.mounts[device], mount.Point{Path: path, Type: "xfs"})
	if p.changed != nil {
		p.changed()
	}
}

// group creates a pod's control group.
func (p *pods) group(pod string) {
	p.with(func() { p.groups[pod] = map[uint64]volume.IOLimits{} })
}

// limits returns a pod's limits on a device.
func (p *pods) limits(pod string, device uint64) (l volume.IOLimits) {
	p.with(func() { l = p.groups[pod][device] })
	return l
}

func (p *pods) written() (out []string) {
	p.with(func() { out = slices.Clone(p.writes) })
	return out
}

func (p *pods) looked() (n int) {
	p.with(func() { n = p.looks })
	return n
}

// call counts a call and returns its fault. The caller holds the lock.
func (p *pods) call(name string) error {
	p.looks++
	if p.fault != nil {
		return p.fault(name)
	}
	return nil
}

func (p *pods) allMounts() (map[uint64][]mount.Point, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[uint64][]mount.Point{}
	for device, points := range p.mounts {
		out[device] = slices.Clone(points)
	}
	return out, p.call("mounts")
}

func (p *pods) watch(ctx context.Context, changed func()) error {
	p.mu.Lock()
	err := p.call("watch")
	p.changed = changed
	p.mu.Unlock()
	if err == nil {
		<-ctx.Done()
	}
	return err
}

func (p *pods) Pods(uids map[string]bool) (map[string]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for pod := range p.groups {
		if uids[pod] {
			out[pod] = "/" + pod
		}
	}
	return out, p.call("pods")
}

func (p *pods) IOLimits(group string) (map[uint64]volume.IOLimits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[uint64]volume.IOLimits{}
	for device, l := range p.groups[group[1:]] {
		out[device] = l
	}
	return out, p.call("read " + group)
}

func (p *pods) SetIOLimits(group string, device uint64, l volume.IOLimits) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.call("write " + group); err != nil {
		return err
	}
	p.groups[group[1:]][device] = l
	p.writes = append(p.writes, fmt.Sprintf("%s %d %s", group, device, l))
	return nil
}

func slowTo(limits string) func(*corev1.PersistentVolume) {
	return annotated(pv.AnnotationIOLimits, limits)
}

// A pod gets its limits when its volume is mounted, keeps them while it runs, and gets new ones when the annotation
// changes.
func TestIOLimitsFollow(t *testing.T) {
	t.Parallel()
	r, p := newRig(t), newPods()
	r.config.IO, r.config.Interval = p.io(), time.Hour
	r.claimed("slow", 5, slowTo("wbps=8192"))
	r.claimed("free", 5)
	r.claimOf(object("slow", 5))
	r.start()
	r.eventually(func() bool { return r.metric("flexlvm_gc_rounds_total") > 0 && p.looked() > 0 }, "no pass")
	r.eventually(func() (begun bool) { p.with(func() { begun = p.changed != nil }); return begun }, "mounts are not watched")

	p.group("pod")
	p.mount("pod", "free", 2)
	p.mount("pod", "slow", 1)
	r.eventually(func() bool { return p.limits("pod", 1) == volume.IOLimits{WriteBps: 8192} }, "a mount is not seen")
	r.metricIs("flexlvm_io_limits_in_force", 1)

	r.api.put(object("slow", 5, slowTo("rbps=4096 wiops=3")))
	r.eventually(func() bool { return p.limits("pod", 1) == volume.IOLimits{ReadBps: 4096, WriteIOPS: 3} }, "the annotation is not seen")

	r.api.put(object("slow", 5, slowTo("rbps=4k")))
	r.eventually(func() bool { return len(r.api.told("IOLimitNotApplied")) == 2 }, "not told")
	for i, whom := range []string{"PersistentVolume/slow", "PersistentVolumeClaim/data-slow"} {
		require.Contains(t, r.api.told("IOLimitNotApplied")[i], whom+`: the limits on the IO of volume flexlvm/slow are not in force: flexlvm.io/io-limits: rbps "4k"`)
	}
	r.metricIs("flexlvm_io_limits_not_applied", 1)
	r.api.put(object("slow", 5, annotated(pv.AnnotationCharged, "much")))
	r.eventually(func() bool {
		return len(r.api.told("VolumeNeedsAttention")) == 2 && r.metric("flexlvm_io_limits_not_applied") == 0
	}, "not told")
	require.Equal(t, volume.IOLimits{ReadBps: 4096, WriteIOPS: 3}, p.limits("pod", 1), "it stays")

	r.api.put(object("slow", 5))
	r.eventually(func() bool { return p.limits("pod", 1) == volume.IOLimits{} }, "not lifted")
	r.eventually(func() bool {
		return r.metric("flexlvm_io_limits_not_applied")+r.metric("flexlvm_io_limits_in_force") == 0
	}, "the metrics")
	r.api.put(object("slow", 5, slowTo("rbps=4k")))
	// The same events again are counted in the existing events.
	r.eventually(func() bool { return r.api.requests("patch events") == 2 }, "that it fails again is not told to both")
	require.Equal(t, []string{
		"/pod 1 rbps=max wbps=8192 riops=max wiops=max", "/pod 1 rbps=4096 wbps=max riops=max wiops=3", "/pod 1 rbps=max wbps=max riops=max wiops=max",
	}, p.written(), "and nothing else")
}

// If no claim has limits, mounts and control groups are read only once, because the annotation may have been removed
// while no daemon ran.
func TestIOLimitsCostNothing(t *testing.T) {
	t.Parallel()
	r, p := newRig(t), newPods()
	r.config.IO = p.io()
	p.group("pod")
	p.groups["pod"][1] = volume.IOLimits{WriteBps: 8192}
	p.groups["pod"][7] = volume.IOLimits{WriteBps: 9} // not set by flexlvm
	p.mount("pod", "settled", 1)
	r.start()
	r.eventually(func() bool { return p.limits("pod", 1) == volume.IOLimits{} }, "a limit that is not wanted stays")
	r.rounds(2)
	looks := p.looked()
	r.rounds(3)
	require.Equal(t, looks, p.looked(), "it looks although nothing is limited")
	require.Equal(t, volume.IOLimits{WriteBps: 9}, p.limits("pod", 7))
	p.with(func() { require.Nil(t, p.changed, "mounts are watched") })
}

func TestIOLimitsThatFail(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		call string
		err  error
		told string
	}{
		"cgroup v1":     {"pods", cgroup.ErrVersion, "pod pod: the node does not use cgroup v2"},
		"no controller": {"read /pod", fmt.Errorf("control group /pod: %w", cgroup.ErrNoController), "write +io into cgroup.subtree_control"},
		"no mounts":     {"mounts", errors.New("read mountinfo: made to fail"), "are not in force: read mountinfo"},
		"refused":       {"write /pod", errors.New("made to fail"), "pod pod: made to fail"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, p := newRig(t), newPods()
			r.config.IO = p.io()
			p.fault = func(call string) error {
				if call == tt.call {
					return tt.err
				}
				return nil
			}
			r.claimed("slow", 5, slowTo("wbps=8192"))
			r.claimed("free", 5)
			p.group("pod")
			p.mount("pod", "slow", 1)
			p.mount("pod", "free", 2)
			r.start()
			r.eventually(func() bool { return len(r.api.told("IOLimitNotApplied")) == 1 }, "not told")
			require.Contains(t, r.api.told("IOLimitNotApplied")[0], tt.told)
			r.eventually(r.readyIs("Ready"), "a round fails because of it")
			r.toldNoMore("IOLimitNotApplied")
			require.Len(t, r.api.told("IOLimitNotApplied"), 1, "once is enough")
			r.metricIs("flexlvm_io_limits_not_applied", 1)
			require.Zero(t, r.metric("flexlvm_io_limits_in_force"))
			p.with(func() { p.fault = nil })
			r.eventually(func() bool { return p.limits("pod", 1).WriteBps == 8192 }, "not tried again")
			r.metricIs("flexlvm_io_limits_not_applied", 0)
		})
	}
}

// The kubelet may mount a volume before it creates the pod's control group, so a missing group is reported only after
// a while. A pod whose group has just gone is not reported.
func TestIOLimitsWithoutGroup(t *testing.T) {
	t.Parallel()
	r, p := newRig(t), newPods()
	r.config.IO, r.config.Interval = p.io(), time.Hour
	r.claimed("slow", 5, slowTo("wbps=8192"))
	p.mount("pod", "slow", 1)
	p.group("going")
	p.mount("going", "slow", 1)
	p.fault = func(call string) error {
		if call == "write /going" {
			return cgroup.ErrGone
		}
		return nil
	}
	r.start()
	r.eventually(func() bool { return p.looked() > 8 }, "not looked for again")
	require.Empty(t, r.api.told("IOLimitNotApplied"))
	r.clock.pass(time.Minute)
	r.eventually(func() bool { return len(r.api.told("IOLimitNotApplied")) == 1 }, "not told in the end")
	require.Contains(t, r.api.told("IOLimitNotApplied")[0], "pod pod: it has no control group below /sys/fs/cgroup")

	r.api.put(object("slow", 5, slowTo("wbps=4096"))) // triggers a round
	p.group("pod")
	r.api.put(object("slow", 5, slowTo("wbps=5000")))
	r.eventually(func() bool { return p.limits("pod", 1).WriteBps == 5000 }, "not applied")
}

func TestIOLimitsDryRun(t *testing.T) {
	t.Parallel()
	r, p := newRig(t), newPods()
	r.config.IO, r.config.DryRun = p.io(), true
	r.claimed("slow", 5, slowTo("wbps=8192"))
	p.group("pod")
	p.mount("pod", "slow", 1)
	r.start()
	r.rounds(3)
	require.Zero(t, p.looked())
}
