package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const week = 7 * 24 * time.Hour

// fakeTrimmer trims the volumes of a fakeEngine.
type fakeTrimmer struct {
	*fakeEngine
	since time.Time
	// hold blocks trims until it is closed or their context ends.
	hold chan struct{}
}

func (e *fakeTrimmer) TrimmedSince(context.Context) (time.Time, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.since, e.note("since")
}

func (e *fakeTrimmer) Trim(ctx context.Context, ref node.Ref, rate volume.Bytes) (volume.Bytes, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.note("trim %s at %s", ref, rate); err != nil {
		return volume.MiB, err
	}
	if hold := e.hold; hold != nil {
		e.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
		}
		e.mu.Lock()
	}
	if ctx.Err() != nil {
		return volume.MiB, ctx.Err()
	}
	v := e.find(ref, ref.Name)
	if v == nil || v.UUID != ref.UUID {
		return 0, errors.New("is another by now")
	}
	v.LastTrimmed = e.now()
	return 10 * volume.MiB, nil
}

// trimmingRig has two mounted thin volumes and a mounted thick one.
func trimmingRig(t *testing.T) (*rig, *fakeTrimmer) {
	r := newRig(t)
	mounted := func(v *inventory.Volume) { v.Mounts, v.Open = []string{"/pods/" + string(v.Name)}, true }
	for i := range 2 {
		name := fmt.Sprintf("thin-%d", i)
		r.volume(name, volume.Ready, 1, mounted)
		r.api.put(object(name, 1))
	}
	r.volume("thick", volume.Ready, 1, mounted, func(v *inventory.Volume) { v.Shape = volume.Shape{Layout: volume.Linear} })
	r.api.put(object("thick", 1))
	r.engine.with(func() {
		for i := range r.engine.volumes {
			if v := &r.engine.volumes[i]; strings.HasPrefix(string(v.Name), "thin") {
				v.Shape = volume.Shape{Layout: volume.Thin, ThinPool: "pool"}
			}
		}
		r.engine.pools = append(r.engine.pools, inventory.Pool{
			Name: "flexlvm/pool", UUID: "pool", Size: volume.TiB, Free: volume.TiB, Extent: 4 * volume.MiB,
			Thin: &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: true, Metadata: volume.GiB},
		})
	})
	trimmer := &fakeTrimmer{fakeEngine: r.engine, since: r.clock.now()}
	r.config.Trim = nodeagent.Trimming{Trimmer: trimmer, Interval: week, Rate: 7 * volume.MiB}
	return r, trimmer
}

// Thin volumes are trimmed once a week, across restarts of the daemon. Thick ones are not trimmed.
func TestTrimsOfThinVolumes(t *testing.T) {
	t.Parallel()
	r, _ := trimmingRig(t)
	stop := r.start()
	r.rounds(2)
	require.Empty(t, r.engine.called("trim"), "their time has not come")
	require.Zero(t, r.metric("flexlvm_pool_last_trim_timestamp_seconds"))
	for n := 1; n <= 3; n++ {
		r.clock.pass(week)
		r.eventually(func() bool { return len(r.engine.called("trim")) == 2*n }, "not trimmed in week %d: %v", n, r.engine.called("trim"))
		r.rounds(2)
		require.Len(t, r.engine.called("trim"), 2*n)
		if n == 2 {
			stop()
			r.start()
		}
	}
	require.Contains(t, r.engine.called("trim"), "trim flexlvm/thin-0 at "+(7*volume.MiB).String())
	require.Contains(t, r.engine.called("trim"), "trim flexlvm/thin-1 at "+(7*volume.MiB).String())
	r.metricIs("flexlvm_trims_total", 2) // by the second daemon
	r.metricIs("flexlvm_trim_discarded_bytes_total", float64(20*volume.MiB))
	r.metricIs("flexlvm_pool_last_trim_timestamp_seconds", float64(r.clock.now().Unix()))
}

func TestTrimsOfThickVolumesOnRequest(t *testing.T) {
	t.Parallel()
	r, _ := trimmingRig(t)
	r.config.Trim.Thick = true
	r.start()
	r.clock.pass(week)
	r.eventually(func() bool { return len(r.engine.called("trim")) == 3 }, "not all are trimmed")
}

// The annotation from a volume's class overrides the node's settings.
func TestTrimsAsTheClassSays(t *testing.T) {
	t.Parallel()
	r, _ := trimmingRig(t)
	r.api.put(object("thick", 1, annotated(pv.AnnotationTrim, "weekly")))
	r.api.put(object("thin-0", 1, annotated(pv.AnnotationTrim, "never")))
	r.start()
	r.clock.pass(week)
	r.eventually(func() bool { return len(r.engine.called("trim")) == 2 }, "not both are trimmed: %v", r.engine.called("trim"))
	require.NotContains(t, strings.Join(r.engine.called("trim"), " "), "thin-0")
	r.api.put(object("thin-0", 1))
	r.eventually(func() bool { return len(r.engine.called("trim")) == 3 }, "it may be changed")
}

// An annotation without effect is announced on the PersistentVolume and on its claim. The volume is used
// nevertheless.
func TestAnnotationsWithoutEffect(t *testing.T) {
	t.Parallel()
	r, _ := trimmingRig(t)
	wrong := object("thin-0", 1, annotated(pv.AnnotationTrim, "weekyl"), annotated(pv.AnnotationOnNodeLoss, "Release"))
	r.claimOf(wrong)
	r.api.put(wrong)
	r.api.put(object("thin-1", 1, annotated(pv.AnnotationOnNodeLoss, "release")))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 2 }, "not both are told: %v", r.api.told("VolumeNeedsAttention"))
	const why = `PersistentVolume thin-0 is not trimmed: flexlvm.io/trim "weekyl": is not known; it is one of auto, daily, weekly, never; ` +
		`claim db/data-thin-0 is kept if the node of PersistentVolume thin-0 is lost: flexlvm.io/on-node-loss "Release": is not known; it is one of keep, release`
	for _, text := range r.api.told("VolumeNeedsAttention") {
		require.Contains(t, text, why)
	}
	require.Len(t, r.claimWarnings("VolumeNeedsAttention"), 1)
	r.toldNoMore("VolumeNeedsAttention")
	r.clock.pass(week)
	r.eventually(func() bool { return len(r.engine.called("trim")) == 1 }, "the other is not trimmed")
	require.Contains(t, r.engine.called("trim")[0], "thin-1")
}

func TestNoTrims(t *testing.T) {
	for name, change := range map[string]func(*rig){
		"never":   func(r *rig) { r.config.Trim.Interval = 0 },
		"dry run": func(r *rig) { r.config.DryRun = true },
		"not written down": func(r *rig) {
			r.engine.fault = func(call string) error {
				if call == "since" {
					return errors.New("read-only file system")
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := trimmingRig(t)
			change(r)
			r.start()
			r.clock.pass(3 * week)
			r.rounds(4)
			require.Empty(t, r.engine.called("trim"))
		})
	}
}

// Volumes are trimmed one at a time. A daemon that is stopped interrupts the trim, and the next one starts it again.
func TestTrimThatIsCutShort(t *testing.T) {
	t.Parallel()
	r, trimmer := trimmingRig(t)
	trimmer.hold = make(chan struct{})
	stop := r.start()
	r.clock.pass(week)
	r.eventually(func() bool { return len(r.engine.called("trim")) == 1 }, "none is trimmed")
	r.rounds(3)
	require.Len(t, r.engine.called("trim"), 1)
	stop()
	require.Zero(t, r.metric("flexlvm_gc_failures_total", "trim"))
	r.engine.with(func() { trimmer.hold = nil })
	r.start()
	r.eventually(func() bool { return len(r.engine.called("trim")) == 3 }, "it is not begun anew")
	r.metricIs("flexlvm_trims_total", 2)
}

// A failed trim is retried later, and does not hold up the others.
func TestTrimThatFails(t *testing.T) {
	t.Parallel()
	r, _ := trimmingRig(t)
	r.engine.fault = func(call string) error {
		if call == "trim flexlvm/thin-0 at "+(7*volume.MiB).String() {
			return errors.New("input/output error")
		}
		return nil
	}
	r.start()
	r.clock.pass(week)
	r.metricIs("flexlvm_trims_total", 1)
	r.metricIs("flexlvm_trim_discarded_bytes_total", float64(11*volume.MiB))
	r.rounds(3)
	require.Len(t, r.engine.called("trim"), 2, "tried again too early: the clock stands")
	require.InDelta(t, 1, r.metric("flexlvm_gc_failures_total", "trim"), 0)
	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(2 * time.Minute)
	r.metricIs("flexlvm_trims_total", 2)
}
