package nodeagent_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// pvNew makes a PersistentVolume one that the provisioner has just created.
func pvNew(o *corev1.PersistentVolume) {
	o.CreationTimestamp = metav1.NewTime(evictiontest.Now)
	o.Status.Phase = corev1.VolumePending
	o.Spec.ClaimRef.ResourceVersion = "7"
}

// appear creates PersistentVolumes one after the other, and waits until the aheadCreator has handled all of them: the
// last one is a volume that it creates.
func (r *rig) appear(all ...*corev1.PersistentVolume) {
	r.t.Helper()
	for _, o := range all {
		r.api.put(o)
	}
	r.api.put(object("last", 1, pvNew, func(o *corev1.PersistentVolume) { o.CreationTimestamp = metav1.NewTime(r.clock.now()) }))
	r.eventually(func() bool { return len(r.engine.called("create ahead flexlvm/last")) > 0 }, "%v", r.engine.called("create ahead"))
}

// The volume of a new claim is created once before its first mount, after a single GET of its PersistentVolume, and
// without an event.
func TestNewVolumeIsMadeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	asked := r.api.requests("get persistentvolumes")
	r.api.put(object("data", 10, pvNew))
	r.eventually(func() bool { return len(r.engine.called("create ahead")) == 1 }, "it is not made")
	r.rounds(2)
	require.Equal(t, []string{"create ahead flexlvm/data of 9 GiB for db"}, r.engine.called("create ahead"))
	require.Equal(t, asked+1, r.api.requests("get persistentvolumes"))
	require.Empty(t, r.api.told("VolumeMade"))
	bound := object("data", 10)
	bound.CreationTimestamp = metav1.NewTime(evictiontest.Now)
	r.appear(bound)
	require.Len(t, r.engine.called("create ahead flexlvm/data"), 1, "it was bound meanwhile")
	require.Contains(t, r.engine.names(), "data ready")
}

// A volume that is not a plain new one from the provisioner is created at its first mount.
func TestWhatIsNotMadeAhead(t *testing.T) {
	t.Parallel()
	created := func(ago time.Duration) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.CreationTimestamp.Time = evictiontest.Now.Add(-ago) }
	}
	option := func(name, value string) func(*corev1.PersistentVolume) {
		return func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[name] = value }
	}
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"it is old":             created(2 * time.Minute),
		"the clock is behind":   created(-2 * time.Minute),
		"written by hand":       func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.UID = "" },
		"of the other door":     func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.ResourceVersion = "" },
		"bound already":         func(o *corev1.PersistentVolume) { o.Status.Phase = corev1.VolumeBound },
		"of no claim":           func(o *corev1.PersistentVolume) { o.Spec.ClaimRef = nil },
		"without our finalizer": func(o *corev1.PersistentVolume) { o.Finalizers = nil },
		"a copy":                option(volume.OptionCloneOf, "settled"),
		"it cannot be read":     option("odd", "true"),
		"released":              pvReleased,
		"being deleted":         pvDeleting,
		"it is there":           option(volume.OptionVolume, "settled"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start()
			r.eventually(r.readyIs("Ready"), "not ready")
			r.appear(object("data", 10, pvNew, change))
			require.Len(t, r.engine.called("create ahead"), 1, "the last")
		})
	}
}

// No volume is created on the basis of an earlier round.
func TestNothingIsMadeAheadWhileRoundsFail(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if call == "inventory" {
				return errors.New("LVM hangs")
			}
			return nil
		}
	})
	r.eventually(r.readyIs("LVMFailed"), "LVM does not fail")
	r.api.put(object("data", 10, pvNew))
	r.rounds(2)
	r.clock.pass(time.Hour) // on a busy machine the event may arrive only now; then the PersistentVolume is no longer new
	r.engine.with(func() { r.engine.fault = nil })
	r.eventually(r.readyIs("Ready"), "not ready")
	r.appear()
	require.Len(t, r.engine.called("create ahead"), 1, "the last")
}

// A starting daemon creates no volumes for existing PersistentVolumes, however new they are. A dry run creates none
// at all.
func TestNothingIsMadeAheadAtTheBeginning(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, name := range []string{"a", "b", "c"} {
		r.api.put(object(name, 1, pvNew))
	}
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.appear()
	require.Len(t, r.engine.called("create ahead"), 1)

	dry := newRig(t)
	dry.config.DryRun = true
	dry.start()
	dry.rounds(2)
	dry.api.put(object("data", 10, pvNew))
	dry.rounds(3)
	require.Empty(t, dry.engine.called("create ahead"))
}

// A volume that is given up before its turn is not created, and neither is one while the API server does not answer.
// Neither case sends an event.
func TestNewVolumeThatIsNotWantedAnyMore(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(*rig){
		"deleted":  func(r *rig) { delete(r.api.volumes, "data") },
		"another":  func(r *rig) { r.api.volumes["data"].UID = "another" },
		"deleting": func(r *rig) { pvDeleting(r.api.volumes["data"]) },
		"released": func(r *rig) { pvReleased(r.api.volumes["data"]) },
		"no answer": func(r *rig) {
			r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
				if verb == "get" && resource == "persistentvolumes" {
					r.api.mend()
					<-r.t.Context().Done()
				}
				return false
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start()
			r.eventually(r.readyIs("Ready"), "not ready")
			asked := make(chan struct{}, 100)
			r.engine.with(func() {
				r.engine.beforeWanted = func() {
					r.api.with(func() { meanwhile(r) })
					asked <- struct{}{}
				}
			})
			r.api.put(object("data", 10, pvNew))
			<-asked
			r.engine.with(func() { r.engine.beforeWanted = nil })
			r.appear()
			require.Empty(t, r.engine.called("create ahead flexlvm/data"))
			require.Empty(t, r.api.told("VolumeNotMade"))
		})
	}
}

// If the creation fails, it is not retried.
func TestNewVolumeThatCannotBeMadeAhead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "create ahead flexlvm/data") {
				return errors.New("LVM hangs")
			}
			return nil
		}
	})
	r.appear(object("data", 10, pvNew))
	r.clock.pass(soon)
	r.rounds(3)
	require.Len(t, r.engine.called("create ahead flexlvm/data"), 1)
	require.Empty(t, r.api.told("VolumeNotMade"))
	require.Empty(t, r.status().DeclaredVolumes)
}
