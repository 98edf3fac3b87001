package growth

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// charge writes the charges as the node daemon does after its report.
func (w *world) charge(view eviction.View) {
	for _, u := range eviction.Undercharged(view) {
		object := w.api["/"+u.PV].DeepCopyObject().(*corev1.PersistentVolume)
		object.Annotations[pv.AnnotationCharged] = strconv.FormatInt(int64(u.Charged), 10)
		w.store(object)
		w.writes++
	}
}

// late makes the node grow a claim's volume without kubelet learning of it: only the device, or also the content if
// whole is set.
func (w *world) late(name string, whole bool) {
	to := capacity(w.object(name))
	w.runsOut(name)
	w.done(name, volume.Bytes(to.Value()), whole)
}

// runsOut makes kubelet's call for a granted growth time out before the node is done.
func (w *world) runsOut(name string) {
	claim := w.claim(name)
	require.Equal(w.t, pending, state(claim), "granted")
	claim.Status.AllocatedResourceStatuses[storage] = underway
	claim.Status.Conditions = append(claim.Status.Conditions, corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now),
		Message: "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
	})
	w.store(claim)
}

// done makes the node grow the volume of a claim.
func (w *world) done(name string, size volume.Bytes, whole bool) {
	v := w.made["pvc-"+name]
	v.AllocatedWhenFull = volume.XFSDeviceSize(size, 0)
	if w.spec.Layout != volume.Thin {
		v.Allocated = w.spec.Shape().Takes(v.AllocatedWhenFull, volume.DefaultExtent)
	}
	if whole {
		v.Size = size
	}
}

// Zeroing the room of a growth takes longer than kubelet waits. However often the growth is taken back because of
// that, it needs its room once, and each retry waits half a minute.
func TestGrowthThatRunsOutOfTime(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", 10*gib)
	block := w.claim("data")
	block.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	w.store(block)
	w.ask("data", 70*gib)
	w.settle()
	for range 4 {
		w.late("data", false)
		w.now = w.now.Add(nodeErrorGrace)
		w.settle()
		require.Equal(t, refused, state(w.claim("data")), "taken back")
		require.True(t, w.kubelet("data"), "a pod starts meanwhile")
		w.now = w.now.Add(regrowFirst + time.Second)
		w.settle()
	}
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 70*gib)
}

// A growth in a thin pool is carried out, but the answer is lost. What may now be written to the volume is promised
// to no other claim, even if the request is lowered.
func TestGrowthWhoseAnswerIsLost(t *testing.T) {
	w := newWorld(t, 100*gib, thin(1000))
	w.bind("data", gib)
	w.bind("other", gib)
	w.settle()
	w.made["pvc-data"].Allocated, w.made["pvc-other"].Allocated = gib, gib
	w.ask("data", 60*gib)
	w.settle()
	w.late("data", true)
	w.now = w.now.Add(nodeErrorGrace)
	w.settle()
	require.Equal(t, refused, state(w.claim("data")), "taken back")
	w.ask("data", 2*gib)
	w.ask("other", 50*gib)
	w.now = w.now.Add(nodeErrorGrace)
	w.settle()
	require.Contains(t, w.words("other"), string(ledger.Waiting))
}

// From the time such a growth is taken back until the node charges it, its room is promised to no other claim either.
func TestRoomOfAGrowthThatIsTakenBackIsKept(t *testing.T) {
	w := newWorld(t, 100*gib, thin(1000))
	w.bind("data", gib)
	w.bind("other", gib)
	w.made["pvc-data"].Allocated, w.made["pvc-other"].Allocated = gib, gib
	w.ask("data", 60*gib)
	w.settle()
	w.late("data", true)
	w.ask("other", 50*gib)
	w.settle()
	require.Contains(t, w.words("other"), string(ledger.Waiting))
	w.now = w.now.Add(nodeErrorGrace)
	w.serve()
	require.Equal(t, refused, state(w.claim("data")), "taken back")
	w.serve()
	require.Contains(t, w.words("other"), string(ledger.Waiting), "its node has not charged it yet")
	w.settle()
	w.now = w.now.Add(2 * time.Minute)
	w.settle()
	require.Contains(t, w.words("other"), string(ledger.Waiting))
}

// takenBack makes a number of attempts to grow a volume fail, each after a delay.
func (w *world) takenBack(name string, times int, after time.Duration) {
	w.t.Helper()
	for range times {
		w.now = w.now.Add(after)
		w.settle()
		w.runsOut(name)
		w.now = w.now.Add(nodeErrorGrace)
		w.serve()
		require.Equal(w.t, refused, state(w.claim(name)), "taken back")
	}
}

// A call that started before a growth was taken back may carry it out minutes later. Until then its room is promised
// to no other claim, even if the request is lowered and granted meanwhile.
func TestRoomOfAGrowthThatIsCarriedOutLater(t *testing.T) {
	for name, layout := range map[string]func(*volume.Spec){"linear": func(*volume.Spec) {}, "thin": thin(1000)} {
		for lowered, less := range map[string]volume.Bytes{"as much is asked for": 60 * gib, "less is asked for": 2 * gib} {
			for ends, done := range map[string]bool{"the call ends": true, "the call never ends": false} {
				t.Run(name+", "+lowered+", "+ends, func(t *testing.T) {
					w := newWorld(t, 100*gib, layout)
					w.bind("data", gib)
					w.bind("other", gib)
					w.settle()
					w.ask("data", 60*gib)
					w.takenBack("data", 3, 2*time.Minute) // each attempt waits longer
					w.ask("other", 50*gib)
					w.ask("data", less)
					w.now = w.now.Add(90 * time.Second)
					w.settle()
					require.Contains(t, w.words("other"), string(ledger.Waiting))
					if done {
						w.done("data", 60*gib, true)
					} else {
						w.ask("data", 2*gib)
					}
					w.settle()
					w.now = w.now.Add(10 * time.Minute)
					w.settle()
					require.Equal(t, !done, state(w.claim("other")) == pending, w.words("other"))
				})
			}
		}
	}
}

// A growth that always fails on the node reserves its room only for a while: the next attempt comes later.
func TestRoomOfAGrowthThatNeverSucceedsIsGivenToOthers(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.bind("other", gib)
	w.settle()
	w.ask("data", 60*gib)
	w.takenBack("data", 6, regrowAfter)
	w.ask("other", 50*gib)
	for range 6 { // less than regrowAfter
		w.now = w.now.Add(time.Minute)
		w.settle()
	}
	require.Equal(t, pending, state(w.claim("other")), w.words("other"))
}
