package growth

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A pool lacks room for its promises for a moment. They survive that moment, and are taken back if the room stays
// missing.
func TestRoomIsMissingForAMoment(t *testing.T) {
	for name, passes := range map[string]bool{"it passes": true, "it stays": false} {
		for kind, size := range map[string]volume.Bytes{"granted": 45 * gib, "room is made": 60 * gib} {
			t.Run(name+", "+kind, func(t *testing.T) {
				w := newWorld(t, 100*gib)
				w.bind("data", gib)
				w.bind("other", 30*gib)
				w.make("old", volume.Unreferenced, 12*gib)
				w.settle()
				w.ask("data", size)
				w.serve()
				require.True(t, w.promised("data", size), w.words("data"))

				w.make("foreign", "", 30*gib)
				events := len(w.told)
				for range 3 {
					w.daemonReports()
					w.serve()
					w.now = w.now.Add(lackGrace / 4)
				}
				require.True(t, w.promised("data", size), w.words("data"))
				require.Len(t, w.told, events, "no event is sent")
				if passes {
					delete(w.made, "foreign")
				}
				w.daemonReports()
				w.serve()
				w.now = w.now.Add(lackGrace)
				w.serve()
				require.Equal(t, passes, w.promised("data", size), w.words("data"))
			})
		}
	}
}

// promised reports whether the growth of a claim to a size is granted, or room is made for it.
func (w *world) promised(name string, size volume.Bytes) bool {
	object, ask := w.object(name), quantity(size)
	granted := capacity(object)
	return granted.Cmp(ask) == 0 || object.Annotations[pv.AnnotationGrowingTo] == fmt.Sprint(int64(size))
}

// While another volume is being released, however long that takes, its node does not count it as allocatable, and the
// ledger charges it. No promise is withdrawn for that.
func TestReleaseOfAnotherVolumeTakesLong(t *testing.T) {
	for name, tt := range map[string]struct {
		layout        func(*volume.Spec)
		other, holds  volume.Bytes // the size of the other volume, and what is written of it
		granted, made volume.Bytes // sizes for which there is room, or room is made
	}{
		"linear":              {func(*volume.Spec) {}, 30 * gib, 0, 45 * gib, 60 * gib},
		"thin":                {thin(0), 30 * gib, 0, 45 * gib, 60 * gib},
		"thin, overcommitted": {thin(2000), 60 * gib, gib, 80 * gib, 88 * gib},
	} {
		for kind, size := range map[string]volume.Bytes{"granted": tt.granted, "room is made": tt.made} {
			t.Run(name+", "+kind, func(t *testing.T) {
				w := newWorld(t, 100*gib, tt.layout)
				w.bind("data", gib)
				w.bind("other", tt.other)
				if tt.holds > 0 {
					w.made["pvc-other"].Allocated = tt.holds
				}
				w.make("old", volume.Unreferenced, 12*gib)
				w.settle()
				w.ask("data", size)
				w.serve()
				require.True(t, w.promised("data", size), w.words("data"))

				released := w.object("other")
				released.Status.Phase = corev1.VolumeReleased
				w.store(released)
				events := len(w.told)
				for range 6 {
					w.daemonReports()
					w.serve()
					w.now = w.now.Add(lackGrace)
				}
				require.True(t, w.promised("data", size), w.words("data"))
				require.Len(t, w.told, events, "no event is sent")

				delete(w.api, "/pvc-other")
				w.made["pvc-other"].State = volume.Unreferenced
				w.ledger.Gone("pvc-other")
				w.serve()
				require.True(t, w.promised("data", size), "its node's report is not confirmed")
				w.settle()
				require.True(t, w.kubelet("data"))
				w.settle()
				w.requireSize("data", size)
			})
		}
	}
}

// A growth is taken back because its pool lacks some of its room, while a call may still grow the volume. What the pool
// has of that room is promised to no other claim meanwhile, and no other growth is taken back.
func TestRoomOfAGrowthThatIsTakenBackForALack(t *testing.T) {
	for name, layout := range map[string]func(*volume.Spec){"linear": func(*volume.Spec) {}, "thin": thin(0)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 100*gib, layout)
			for _, claim := range []string{"data", "other", "third"} {
				w.bind(claim, gib)
			}
			w.settle()
			w.ask("data", 60*gib)
			w.settle()
			w.now = w.now.Add(time.Second)
			w.ask("third", 5*gib)
			w.settle()
			require.Equal(t, pending, state(w.claim("third")), "granted")

			w.make("foreign", "", 45*gib)
			w.daemonReports()
			w.serve()
			w.runsOut("data")
			w.now = w.now.Add(lackGrace)
			w.serve()
			require.Equal(t, refused, state(w.claim("data")), "taken back")
			w.ask("other", 40*gib)
			w.settle()
			require.Contains(t, w.words("other"), string(ledger.Waiting))
			require.Equal(t, pending, state(w.claim("third")), "still granted")

			w.ask("data", 2*gib)
			w.now = w.now.Add(5*time.Minute + time.Second)
			w.settle()
			require.Equal(t, pending, state(w.claim("other")), w.words("other"))
		})
	}
}
