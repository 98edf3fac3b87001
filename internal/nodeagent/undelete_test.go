package nodeagent_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const fsUUID = "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"

func withFS(v *inventory.Volume) { v.FS = fsUUID }

// marked returns a PersistentVolume that a person has created to undelete a volume.
func marked(name string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return object(name, 10, append([]func(*corev1.PersistentVolume){func(o *corev1.PersistentVolume) {
		o.Status.Phase = corev1.VolumeAvailable
		o.Spec.FlexVolume.Options[volume.OptionFS] = fsUUID
	}, annotated(pv.AnnotationUndelete, fsUUID)}, change...)...)
}

func TestUndelete(t *testing.T) {
	for _, state := range []volume.State{volume.Unreferenced, volume.Retained} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.volume("data", state, 10, withFS)
			r.start()
			r.rounds(1)
			r.claimOf(marked("data"))
			r.api.put(marked("data"))
			r.eventually(func() bool { return r.api.volume("data").Annotations[pv.AnnotationUndelete] == "" }, "the mark stays")
			require.Contains(t, r.engine.names(), "data ready")
			r.eventually(func() bool { return len(r.api.told("VolumeUndeleted")) == 2 }, "not told")
			require.Contains(t, strings.Join(r.api.told("VolumeUndeleted"), "\n"), "PersistentVolumeClaim/data-data: volume flexlvm/data is ready again")
			r.eventually(func() bool { return r.status().ReleasedCount == 0 }, "the report does not say so")
			r.rounds(3)
			require.Len(t, r.engine.called("set flexlvm/data ready"), 1, "once")
			require.NotNil(t, r.api.volume("data"))
		})
	}
}

// If the process dies when the volume is ready, the next one continues from there.
func TestUndeleteGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Ready, 10, withFS)
	r.api.put(marked("data"))
	r.start()
	r.eventually(func() bool { return r.api.volume("data").Annotations[pv.AnnotationUndelete] == "" }, "the mark stays")
	require.Contains(t, r.engine.names(), "data ready")
}

func TestUndeleteOfWhatItCannot(t *testing.T) {
	for name, tt := range map[string]struct {
		volume func(*inventory.Volume) // nil: no volume
		object func(*corev1.PersistentVolume)
		says   string
	}{
		"evicted meanwhile":   {nil, nil, "was evicted before it could be brought back: its data is lost, and no empty volume replaces it"},
		"another file system": {func(v *inventory.Volume) { v.FS = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11" }, nil, "holds the file system 1f3c9a52"},
		"another namespace": {withFS, func(o *corev1.PersistentVolume) { o.Spec.ClaimRef.Namespace = "thief" },
			`belongs to namespace "db", and PersistentVolume data is for claim thief/data-data`},
		"being removed": {func(v *inventory.Volume) { withFS(v); v.State = volume.Doomed }, nil, "was evicted"},
		"half a copy":   {func(v *inventory.Volume) { withFS(v); v.CloneOfFS = "x" }, nil, "was never finished"},
		"another group": {withFS, func(o *corev1.PersistentVolume) {
			o.Spec.FlexVolume.Options[volume.OptionGroupUUID] = "AAAAAA-bbbb-cccc-dddd-eeee-ffff-GGGGGG"
		}, "and the volume was in the one with UUID AAAAAA"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			if tt.volume != nil {
				r.volume("data", volume.Unreferenced, 10, tt.volume)
			}
			o := marked("data")
			if tt.object != nil {
				tt.object(o)
			}
			r.api.put(o)
			r.start()
			r.eventually(func() bool {
				r.clock.pass(soon) // nothing is called evicted at first sight
				return len(r.api.told("VolumeNotUndeleted")) == 1
			}, "no event")
			require.Contains(t, r.api.told("VolumeNotUndeleted")[0], tt.says)
			r.rounds(2)
			require.Empty(t, r.engine.called("set "))
			require.Equal(t, fsUUID, r.api.volume("data").Annotations[pv.AnnotationUndelete], "the mark stays")
			require.Zero(t, r.status().Pools[0].Promised.Value(), "no room is made for a volume that is not made anew")
			require.Empty(t, r.api.told("VolumeUndeleted"))
		})
	}
}

// A PersistentVolume without the annotation, or one that was given up, undeletes nothing.
func TestUndeleteOfWhatNobodyAsksFor(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"no mark":         func(o *corev1.PersistentVolume) { delete(o.Annotations, pv.AnnotationUndelete) },
		"another mark":    annotated(pv.AnnotationUndelete, "true"),
		"no file system":  func(o *corev1.PersistentVolume) { delete(o.Spec.FlexVolume.Options, volume.OptionFS) },
		"another cluster": func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionCluster] = "another" },
		"of another node": func(o *corev1.PersistentVolume) { o.Labels[pv.LabelNode] = "node-2" },
		"released":        func(o *corev1.PersistentVolume) { pvReleased(o); pvRetain(o) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.volume("data", volume.Retained, 10, withFS)
			r.api.put(marked("data", change))
			r.start()
			r.rounds(3)
			require.Contains(t, r.engine.names(), "data retained")
			require.Empty(t, r.api.told("VolumeNotUndeleted"))
		})
	}
}

// If the watch is late, the API server's current answer counts.
func TestUndeleteOfWhatHasChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	r.api.put(marked("data"))
	r.api.with(func() {
		r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
			if verb != "get" || resource != "persistentvolumes" {
				return false
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.requests("get persistentvolumes") > 0 }, "nobody asks")
	r.rounds(2)
	require.Contains(t, r.engine.names(), "data retained")
	r.api.mend()
	r.eventually(func() bool {
		r.clock.pass(soon)
		return r.api.volume("data").Annotations[pv.AnnotationUndelete] == ""
	}, "it is not tried again")
	require.Contains(t, r.engine.names(), "data ready")
}

// kube-controller-manager binds a new PersistentVolume and adds its finalizer. The verdict does not depend on either,
// so no other round is needed.
func TestUndeleteOfWhatIsBound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	r.api.put(marked("data"))
	writes := map[string]int{"get": 2, "patch": 1} // by others, just before a request with this verb
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if resource != "persistentvolumes" {
				return false
			}
			r.api.with(func() {
				if writes[verb]--; writes[verb] < 0 {
					return
				}
				o := r.api.volumes["data"]
				o.Status.Phase = corev1.VolumeBound
				o.Finalizers = append(o.Finalizers, "kubernetes.io/pv-protection")
				r.api.changed("MODIFIED", o)
			})
			return false
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.volume("data").Annotations[pv.AnnotationUndelete] == "" }, "the mark stays") // the clock stands: nothing is retried
	require.Contains(t, r.engine.names(), "data ready")
	require.Len(t, r.engine.called("set flexlvm/data ready"), 1, "in one round")
	require.Empty(t, r.api.told("VolumeNotUndeleted"))
}

// If the PersistentVolume has changed in a way that matters, the next round judges it.
func TestUndeleteOfWhatSaysSomethingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	r.api.put(marked("data"))
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if verb == "get" && resource == "persistentvolumes" {
				r.api.with(func() {
					r.api.volumes["data"].Annotations = map[string]string{}
					r.api.changed("MODIFIED", r.api.volumes["data"])
				})
			}
			return false
		}
	})
	r.start()
	r.eventually(func() bool { return r.api.requests("get persistentvolumes") > 0 }, "nobody asks")
	r.rounds(2)
	require.Contains(t, r.engine.names(), "data retained")
	require.Empty(t, r.api.told("VolumeNotUndeleted"))
}

// While a call holds the volume's lock, no event is sent unless that lasts, because kubectl flexlvm undelete fails
// when it sees the event.
func TestUndeleteOfWhatIsBusy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Retained, 10, withFS)
	r.engine.with(func() { r.engine.fault = failing("set flexlvm/data", fmt.Errorf("lock volume: %w", node.ErrBusy)) })
	r.api.put(marked("data"))
	r.start()
	tried := func(times int) {
		r.eventually(func() bool {
			r.clock.pass(time.Second) // until the retry
			return len(r.engine.called("set flexlvm/data")) >= times
		}, "it is not tried again")
	}
	tried(4)
	r.rounds(1)
	require.Empty(t, r.api.told("VolumeNotUndeleted"))
	tried(8)
	r.eventually(func() bool { return len(r.api.told("VolumeNotUndeleted")) == 1 }, "a call that hangs is not told of")
	r.engine.with(func() { r.engine.fault = nil })
	r.eventually(func() bool {
		r.clock.pass(time.Second)
		return r.api.volume("data").Annotations[pv.AnnotationUndelete] == ""
	}, "it is not brought back")
}

func TestUndeleteThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Unreferenced, 10, withFS)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "set ") {
				return errors.New("LVM is locked")
			}
			return nil
		}
	})
	r.api.put(marked("data"))
	r.start()
	r.eventually(func() bool { return len(r.api.told("VolumeNotUndeleted")) == 1 }, "no event")
	require.Contains(t, r.api.told("VolumeNotUndeleted")[0], "LVM is locked")
	require.Contains(t, r.engine.names(), "data unreferenced")
}

// The report shows the origin of a volume whose PersistentVolume is gone, even after a restart.
func TestReportOfOrigins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.volume("data", volume.Ready, 10, withFS)
	r.api.put(object("data", 10, pvReleased, annotated(pv.AnnotationIOLimits, "riops=100"), annotated(pv.AnnotationOnNodeLoss, "release"), annotated(pv.AnnotationTrim, "never"), func(o *corev1.PersistentVolume) {
		o.Spec.StorageClassName = "fast"
		o.Spec.FlexVolume.Options[volume.OptionInodes] = "5000"
		o.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}))
	stop := r.start()
	r.eventually(func() bool { return r.api.volume("data") == nil && r.status().ReleasedCount == 1 }, "not released")
	want := &flexlvmv1.ReleasedOrigin{
		Claim: "data-data", StorageClassName: "fast", Inodes: 5000, OnNodeLoss: "release", Trim: "never", IOLimits: "rbps=max wbps=max riops=100 wiops=max", AccessModes: []string{"ReadWriteOncePod"},
	}
	require.Equal(t, want, r.status().Released[0].Origin)
	require.Equal(t, fsUUID, r.status().Released[0].FilesystemUUID)
	stop()
	r.start()
	r.volume("later", volume.Unreferenced, 1, func(v *inventory.Volume) { v.FS = "1f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11" })
	r.eventually(func() bool { return r.status().ReleasedCount == 2 }, "no report")
	for _, one := range r.status().Released {
		if one.Name == "data" {
			require.Equal(t, want, one.Origin)
		} else {
			require.Nil(t, one.Origin)
		}
	}
}

// While the volume group is not seen, the report keeps its released volumes with their origins, even if the daemon is
// restarted meanwhile. They are not lost when the group is back.
func TestReportOfOriginsWhileTheGroupIsNotSeen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.with(func() {
		r.engine.pools = append(r.engine.pools, inventory.Pool{Name: "late", UUID: "of-late", Size: volume.GiB, Free: volume.GiB, Extent: 4 * volume.MiB})
	})
	r.volume("data", volume.Ready, 10, withFS)
	r.engine.with(func() { r.engine.volumes[1].Group, r.engine.volumes[1].GroupUUID = "late", "of-late" })
	r.api.put(object("data", 10, pvReleased, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionGroup] = "late" }))
	stop := r.start()
	r.eventually(func() bool { return r.api.volume("data") == nil && r.status().ReleasedCount == 1 }, "not released")
	want := r.status().Released[0].Origin
	require.Equal(t, "data-data", want.Claim)
	stop()

	var pools []inventory.Pool
	var volumes []inventory.Volume
	r.engine.with(func() {
		pools, volumes = r.engine.pools, r.engine.volumes
		r.engine.pools, r.engine.volumes = pools[:1:1], volumes[:1:1]
	})
	stop = r.start()
	r.eventually(func() bool { return len(r.status().Pools) == 1 }, "the group is still seen")
	require.EqualValues(t, 1, r.status().ReleasedCount)
	require.Equal(t, "late", r.status().Released[0].Pool)
	require.Equal(t, want, r.status().Released[0].Origin)
	stop()

	r.engine.with(func() { r.engine.pools, r.engine.volumes = pools, volumes })
	r.start()
	r.eventually(func() bool { return len(r.status().Pools) == 2 }, "the group is not seen")
	require.Len(t, r.status().Released, 1)
	require.Equal(t, want, r.status().Released[0].Origin)
}

// When a PersistentVolume is deleted, the report already has its volume's origin, even if another process has
// released the volume, or reports could not be written. Otherwise an older volume of the claim could be taken for the
// last one. The origin outlives the process.
func TestReportHasTheOriginBeforeThePersistentVolumeGoes(t *testing.T) {
	for name, state := range map[string]volume.State{"released now": volume.Ready, "released by an earlier process": volume.Unreferenced} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.volume("data", state, 10, withFS)
			r.api.put(object("data", 10, pvReleased))
			gone := make(chan []flexlvmv1.ReleasedVolume, 1)
			writes := 0
			r.api.with(func() {
				r.api.fault = func(w http.ResponseWriter, verb, resource string) bool {
					switch {
					case verb == "put" && resource == "nodestorages":
						if len(r.engine.called("release")) > 0 {
							writes++ // its first report is not written
						}
						if writes == 1 {
							w.WriteHeader(http.StatusInternalServerError)
							return true
						}
					case verb == "delete" && resource == "persistentvolumes":
						select {
						case gone <- r.status().Released:
						default:
						}
						w.WriteHeader(http.StatusInternalServerError)
						return true
					}
					return false
				}
			})
			stop := r.start()
			var released []flexlvmv1.ReleasedVolume
			r.eventually(func() bool {
				select {
				case released = <-gone:
					return true
				default:
					return false
				}
			}, "it is not let go")
			stop()
			require.Len(t, released, 1)
			require.Equal(t, "data-data", released[0].Origin.Claim)
			require.Len(t, r.engine.called("release flexlvm/data"), 1, "nothing is released twice")
		})
	}
}
