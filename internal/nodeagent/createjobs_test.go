package nodeagent_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func pvCopyOf(source string) func(*corev1.PersistentVolume) {
	return func(o *corev1.PersistentVolume) {
		o.Spec.FlexVolume.Options[volume.OptionLayout] = "thin"
		o.Spec.FlexVolume.Options[volume.OptionThinPool] = "pool"
		o.Spec.FlexVolume.Options[volume.OptionCloneOf] = source
	}
}

// fullPool adds a thin pool in which copies and snapshots fail.
func (r *rig) fullPool() {
	r.engine.with(func() {
		r.engine.pools = append(r.engine.pools, inventory.Pool{
			Name: "flexlvm/pool", UUID: "pool", Size: volume.TiB, Free: volume.TiB, Extent: 4 * volume.MiB,
			Thin: &inventory.ThinPool{GroupUUID: evictiontest.GroupUUID, Known: true, Metadata: volume.GiB},
		})
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "clone") {
				return errors.New("the pool is full")
			}
			return nil
		}
	})
}

// A copy is created as soon as its PersistentVolume exists. Its source is released only after that, whenever its user
// deletes the source.
func TestCopyIsTakenBeforeItsSourceGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.fullPool()
	r.start()
	r.rounds(1)
	r.api.put(object("copy", 10, pvCopyOf("source")))
	released := r.api.volume("source")
	pvReleased(released)
	r.api.put(released)
	r.eventually(func() bool { return len(r.engine.called("clone flexlvm/copy of source")) == 1 }, "no copy is tried")
	r.eventually(func() bool { return len(r.api.told("VolumeNotCopied")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeNotCopied")[0], "PersistentVolume/copy: the pool is full; it is retried")
	r.rounds(3)
	require.Len(t, r.engine.called("clone"), 1, "tried again too early: the clock stands")
	require.Contains(t, r.engine.names(), "source ready")
	require.Contains(t, r.api.volume("source").Finalizers, pv.Finalizer)
	require.Empty(t, r.api.told("VolumeNeedsAttention"), "nobody need do anything")

	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(func() bool { return r.api.volume("source") == nil }, "the source stays")
	require.Contains(t, r.engine.names(), "source unreferenced")
	require.Contains(t, r.engine.names(), "copy ready")
	r.eventually(func() bool { return len(r.api.told("VolumeCopied")) == 1 }, "no event")
	r.rounds(2)
	require.Len(t, r.engine.called("clone"), 2)
}

// The log names the object that could not be created.
func TestLogOfWhatIsNotMade(t *testing.T) {
	for name, tt := range map[string]struct {
		object *corev1.PersistentVolume
		want   string
	}{
		"copy":     {object("copy", 10, pvCopyOf("source")), "Copy could not be made"},
		"snapshot": {snapshotObject(t), "Snapshot could not be taken"},
		"declared": {object("data", 10, pvDeclared), "Declared volume could not be created"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out logged
			r := newRig(t)
			r.log = funcr.New(func(_, args string) { out.add(args) }, funcr.Options{})
			r.claimed("source", 10)
			r.engine.with(func() {
				r.engine.fault = func(call string) error {
					if strings.HasPrefix(call, "clone") || strings.HasPrefix(call, "create ahead") {
						return errors.New("LVM hangs")
					}
					return nil
				}
			})
			r.api.put(tt.object)
			r.start()
			r.eventually(func() bool { return strings.Contains(out.all(), tt.want+"; it is retried") }, "not logged")
			require.Equal(t, tt.object.Name != "data", strings.Contains(out.all(), `"of"="source"`))
		})
	}
}

// A dry run creates no copies.
func TestCopyInADryRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.config.DryRun = true
	r.claimed("source", 10)
	r.api.put(object("copy", 10, pvCopyOf("source")))
	r.start()
	r.rounds(3)
	require.Empty(t, r.engine.called("clone"))
}
