package nodeagent_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestRelease(t *testing.T) {
	tests := map[string]struct {
		change []func(*corev1.PersistentVolume)
		state  string // of the volume, afterwards
		gone   bool   // the PersistentVolume
	}{
		"released, Delete":         {change: []func(*corev1.PersistentVolume){pvReleased}, state: "data unreferenced", gone: true},
		"failed, Delete":           {change: []func(*corev1.PersistentVolume){func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeFailed }}, state: "data unreferenced", gone: true},
		"released, Retain":         {change: []func(*corev1.PersistentVolume){pvReleased, pvRetain}, state: "data ready"},
		"bound":                    {state: "data ready"},
		"deleted by hand, Delete":  {change: []func(*corev1.PersistentVolume){pvReleased, pvDeleting}, state: "data unreferenced", gone: true},
		"deleted by hand, Retain":  {change: []func(*corev1.PersistentVolume){pvReleased, pvDeleting, pvRetain}, state: "data retained", gone: true},
		"deleted, bound, in use":   {change: []func(*corev1.PersistentVolume){pvDeleting, pvProtected}, state: "data ready"},
		"deleted, bound, bare":     {change: []func(*corev1.PersistentVolume){pvDeleting}, state: "data ready"},
		"of another cluster":       {change: []func(*corev1.PersistentVolume){pvReleased, ofCluster("another")}, state: "data ready"},
		"nonsense in its options":  {change: []func(*corev1.PersistentVolume){pvReleased, annotated(pv.AnnotationWipe, "twice")}, state: "data ready"},
		"another's finalizer too":  {change: []func(*corev1.PersistentVolume){pvReleased, pvProtected}, state: "data unreferenced"},
		"no flexlvm finalizer yet": {change: []func(*corev1.PersistentVolume){pvReleased, func(pv *corev1.PersistentVolume) { pv.Finalizers = nil }}, state: "data unreferenced", gone: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("data", 10, tt.change...)
			r.start()
			r.eventually(func() bool { return slices.Contains(r.engine.names(), tt.state) }, "the volume is not %s", tt.state)
			r.eventually(func() bool { return (r.api.volume("data") == nil) == tt.gone }, "the PersistentVolume: %v", r.api.volume("data"))
			r.rounds(2)
			require.Contains(t, r.engine.names(), tt.state)
			require.Equal(t, tt.gone, r.api.volume("data") == nil)
			require.Contains(t, r.engine.names(), "settled ready")
			if !tt.gone && !strings.HasSuffix(tt.state, "unreferenced") && len(tt.change) > 0 && name != "no flexlvm finalizer yet" {
				require.Contains(t, r.api.volume("data").Finalizers, pv.Finalizer)
			}
		})
	}
}

func pvProtected(pv *corev1.PersistentVolume) {
	pv.Finalizers = append(pv.Finalizers, "kubernetes.io/pv-protection")
}

func ofCluster(uid string) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) { pv.Spec.FlexVolume.Options[volume.OptionCluster] = uid }
}

// A claim was deleted before its volume's first mount: the volume must not be created any more.
func TestReleaseOfAVolumeThatWasNeverMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.api.put(object("never", 10, pvReleased))
	r.start()
	r.eventually(func() bool { return r.api.volume("never") == nil }, "the PersistentVolume stays")
	r.engine.with(func() { require.Equal(t, []string{"flexlvm/never"}, r.engine.tombs) })
}

// A directory pool was renamed, and another one has its old name. The engine would look for the volume in the other
// pool in every round, so a person has to resolve this.
func TestReleaseOfAVolumeWhosePoolWasRenamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.directory("data", 2)
	r.engine.with(func() {
		v := r.engine.find(node.Ref{Group: "flexlvm"}, "data")
		v.State, v.Reclaim = volume.Ready, volume.ReclaimLazy
		another := r.engine.pools[1]
		another.Name, another.UUID, another.LVs = "flexlvm:another", "uuid-another", 0
		r.engine.pools = append(r.engine.pools, another)
	})
	r.api.put(object("data", 2, pvReleased, func(pv *corev1.PersistentVolume) {
		options := pv.Spec.FlexVolume.Options
		options[volume.OptionLayout], options[volume.OptionDirectoryPool] = string(volume.Directory), "another"
	}))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNeedsAttention")) == 1 }, "nobody is told")
	require.Contains(t, r.api.told("VolumeNeedsAttention")[0], "it was created in directory pool flexlvm:another, but flexlvm/data is in directory pool flexlvm:small; rename the pool back")
	r.rounds(2)
	require.Empty(t, r.engine.called("release flexlvm/data"))
	require.NotNil(t, r.api.volume("data"))
}

// Two PersistentVolumes of the same volume are both released, although the report shows the origin from only one of
// them.
func TestReleaseOfTwoPersistentVolumesOfAVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10, pvReleased)
	r.api.put(object("again", 10, pvReleased, named("data")))
	r.start()
	r.eventually(func() bool { return r.api.volume("again") == nil && r.api.volume("data") == nil }, "one stays")
	require.Len(t, r.engine.called("release flexlvm/data"), 2)
	require.Contains(t, r.engine.names(), "data unreferenced")
}

func TestReleaseKeepsDisposal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10, pvReleased, annotated(pv.AnnotationReclaim, "immediate"), annotated(pv.AnnotationWipe, "zero"))
	r.start()
	r.eventually(func() bool { return slices.Equal(r.engine.names(), []string{"settled ready"}) }, "reclaim: immediate: %v", r.engine.names())
	r.eventually(func() bool { return len(r.api.told("VolumeEvicted")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeEvicted")[0], "Node/node-1: volume flexlvm/data was evicted (Immediate)")
}

// Retain is set when the volume is already unreferenced, but its PersistentVolume still exists: the volume is
// retained.
func TestRetainCountsUntilThePersistentVolumeIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10, pvReleased)
	r.api.fail(http.StatusInternalServerError, "delete persistentvolumes")
	r.start()
	r.eventually(func() bool { return slices.Contains(r.engine.names(), "data unreferenced") }, "not released")
	r.api.put(object("data", 10, pvReleased, pvRetain))
	r.api.with(func() { r.api.fault = nil })
	r.clock.pass(time.Hour)
	r.claimed("big", 80) // needs its room
	r.rounds(3)
	require.NotNil(t, r.api.volume("data"), "a person decides")
	require.Contains(t, r.engine.names(), "data unreferenced")
	r.api.put(object("data", 10, pvReleased, pvRetain, pvDeleting))
	r.eventually(func() bool {
		r.clock.pass(time.Second) // until the retry, whenever the failure was recorded
		return r.api.volume("data") == nil
	}, "the PersistentVolume stays")
	require.Contains(t, r.engine.names(), "data retained")
}

// The finalizer is removed after the node has released the volume, not before.
func TestFinalizerGoesLast(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10, pvReleased)
	early := false
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if resource == "persistentvolumes" && (verb == "delete" || verb == "patch") {
				early = early || !slices.Contains(r.engine.names(), "data unreferenced")
			}
			return false
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.volume("data") == nil }, "the PersistentVolume stays")
	r.api.with(func() { require.False(t, early) })
	r.eventually(func() bool { return len(r.api.told("VolumeReleased")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeReleased")[0], "PersistentVolume/data: PersistentVolume data was released")
}

// The daemon or the API server fails between any two steps of a release.
func TestReleaseGoesOnWhereItStopped(t *testing.T) {
	for step, state := range map[string]string{"delete": "", "get": "deleting", "patch": "deleting"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("data", 10, pvReleased)
			r.api.fail(http.StatusInternalServerError, step+" persistentvolumes")
			if step == "get" { // except for the GETs of the verdict
				all := r.api.fault
				r.api.with(func() {
					r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
						return r.api.volume("data").DeletionTimestamp != nil && all(w, verb, resource)
					}
				})
			}
			stop := r.start()
			r.eventually(func() bool { return slices.Contains(r.engine.names(), "data unreferenced") }, "not released")
			if step == "get" {
				r.eventually(func() bool { return r.api.volume("data").DeletionTimestamp != nil }, "the step before it is not made")
			}
			r.eventually(func() bool { return r.api.requests(step+" persistentvolumes") > 0 }, "the step is not tried")
			stop()
			require.Contains(t, r.api.volume("data").Finalizers, pv.Finalizer)
			require.Equal(t, state == "deleting", r.api.volume("data").DeletionTimestamp != nil)

			r.api.mend()
			r.start()
			r.eventually(func() bool { return r.api.volume("data") == nil }, "the PersistentVolume stays")
			require.Contains(t, r.engine.names(), "data unreferenced", "its age would not be counted from the first release")
		})
	}
}

// A verdict counts only as long as the API server confirms it.
func TestReleaseOfWhatHasChangedMeanwhile(t *testing.T) {
	for name, now := range map[string]func(*fakeAPI, http.ResponseWriter) bool{
		"Retain was said": func(a *fakeAPI, _ http.ResponseWriter) bool {
			a.put(object("data", 10, pvReleased, pvRetain))
			return false
		},
		"no answer": func(_ *fakeAPI, w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("data", 10, pvReleased)
			r.api.with(func() {
				r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
					return verb == "get" && resource == "persistentvolumes" && now(r.api, w)
				}
			})
			r.start()
			r.eventually(func() bool { return r.api.requests("get persistentvolumes") > 0 }, "nobody asks")
			r.rounds(3)
			r.untouched("settled ready", "data ready")
			require.Nil(t, r.api.volume("data").DeletionTimestamp)
			require.Contains(t, r.api.volume("data").Finalizers, pv.Finalizer)
		})
	}
}

// If LVM fails, the PersistentVolume stays unchanged, and other volumes are released.
func TestReleaseThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("bad", 10, pvReleased)
	r.claimed("good", 10, pvReleased)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "release flexlvm/bad") {
				return errors.New("a disk is gone")
			}
			return nil
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.volume("good") == nil }, "the other is not released")
	r.rounds(3)
	require.Nil(t, r.api.volume("bad").DeletionTimestamp)
	require.Contains(t, r.api.volume("bad").Finalizers, pv.Finalizer)
	require.Len(t, r.engine.called("release flexlvm/bad"), 1, "tried again too early: the clock stands")
	r.eventually(func() bool { return len(r.api.told("VolumeNotReleased")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeNotReleased")[0], "a disk is gone")

	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(func() bool { return r.api.volume("bad") == nil }, "it is not tried again")
}

// While a call holds a volume's lock, other volumes are released. A warning is sent only if that lasts.
func TestReleaseOfWhatIsBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("busy", 10, pvReleased)
	r.claimed("good", 10, pvReleased)
	busy := fmt.Errorf("lock volume: %w", node.ErrBusy)
	r.engine.with(func() { r.engine.fault = failing("release flexlvm/busy", busy) })
	r.start()
	tried := func(times int) {
		r.eventually(func() bool {
			r.clock.pass(time.Second) // until the retry
			return len(r.engine.called("release flexlvm/busy")) >= times
		}, "it is not tried again")
	}
	r.eventually(func() bool { return r.api.volume("good") == nil }, "the other is not released")
	tried(4)
	r.rounds(1)
	require.Empty(t, r.api.told("VolumeNotReleased"))
	tried(8)
	r.eventually(func() bool { return len(r.api.told("VolumeNotReleased")) == 1 }, "a call that hangs is not told of")
	require.Contains(t, r.api.told("VolumeNotReleased")[0], busy.Error())
	r.engine.with(func() { r.engine.fault = nil })
	r.eventually(func() bool {
		r.clock.pass(time.Second)
		return r.api.volume("busy") == nil
	}, "the PersistentVolume stays")
}

// The PersistentVolume changes between the verdict and the delete. The delete fails, because its preconditions name
// the old version.
func TestReleaseOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10, pvReleased)
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if verb == "delete" && resource == "persistentvolumes" {
				r.api.put(object("data", 10, pvReleased, annotated("somebody", "was here"))) // gets a new resourceVersion
			}
			return false
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.requests("delete persistentvolumes") > 0 }, "not tried")
	require.Len(t, r.engine.called("release"), 1)
	r.rounds(2)
	require.NotNil(t, r.api.volume("data"))
	require.Nil(t, r.api.volume("data").DeletionTimestamp)
	require.Zero(t, r.api.requests("patch persistentvolumes"), "its finalizer")
	r.api.with(func() { r.api.fault = nil })
	r.eventually(func() bool {
		r.clock.pass(time.Second) // until the retry, whenever the refusal was recorded
		return r.api.volume("data") == nil
	}, "the PersistentVolume stays")
}

// Retain is set on a PersistentVolume that is being deleted, at the moment its volume is released or its finalizer is
// removed. The PersistentVolume stays until the volume is retained.
func TestRetainSaidWhileTheObjectGoes(t *testing.T) {
	for _, at := range []string{"release", "patch"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.claimed("data", 10, pvReleased, pvDeleting)
			said := sync.OnceFunc(func() { r.api.put(object("data", 10, pvReleased, pvRetain, pvDeleting)) })
			r.engine.with(func() {
				r.engine.fault = func(call string) error {
					if strings.HasPrefix(call, "release flexlvm/data unreferenced") && at == "release" {
						said()
					}
					return nil
				}
			})
			r.api.with(func() {
				r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
					if resource == "persistentvolumes" && verb == at {
						said()
					}
					return false
				}
			})
			r.start()
			r.eventually(func() bool {
				r.clock.pass(time.Second) // until the retry
				return r.api.volume("data") == nil
			}, "the PersistentVolume stays")
			require.Equal(t, []string{"release flexlvm/data unreferenced", "release flexlvm/data retained"}, r.engine.called("release flexlvm/data"))
		})
	}
}

// The report's allocatable room shrinks by a released volume before its PersistentVolume is deleted. Otherwise the
// room would be promised a second time.
func TestReportGoesOutBeforeThePersistentVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("data", 10)
	r.start()
	r.eventually(func() bool { return r.status().Volumes == 2 }, "no report: %v", r.status())
	before := r.status().Pools[0].Allocatable
	r.api.fail(http.StatusInternalServerError, "put nodestorages")
	released := r.api.volume("data")
	pvReleased(released)
	r.api.put(released)
	r.rounds(2)
	require.NotNil(t, r.api.volume("data"), "released although the report could not be written")
	require.Contains(t, r.engine.names(), "data ready")

	early := false
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if resource == "persistentvolumes" && (verb == "delete" || verb == "patch") {
				now := r.api.storage.Status.Pools[0].Allocatable
				early = early || now.Cmp(before) >= 0
			}
			return false
		}
	})
	r.eventually(func() bool { return r.api.volume("data") == nil }, "the PersistentVolume stays")
	r.api.with(func() { require.False(t, early) })
}
