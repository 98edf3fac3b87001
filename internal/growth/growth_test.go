package growth

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func TestGranted(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 10*gib)
	w.manager("data")
	w.settle()
	object, claim := w.object("data"), w.claim("data")
	larger := capacity(object)
	require.Equal(t, int64(10*gib), larger.Value())
	require.Equal(t, "1Gi", object.Annotations[pv.AnnotationPreResizeCapacity])
	require.Equal(t, pending, state(claim))
	waits := condition(claim, corev1.PersistentVolumeClaimFileSystemResizePending)
	require.NotNil(t, waits)
	const when = "while a pod with write access uses it, or when the next such pod starts"
	require.Equal(t, "The room is reserved. The node grows the volume "+when+".", waits.Message)
	require.Len(t, w.told, 1)
	require.Contains(t, w.told[0], "Normal GrowthGranted grows from 1Gi to 10Gi: 9890168832 bytes (9.21 GiB) more are reserved")
	require.Contains(t, w.told[0], "the node does it "+when)

	require.True(t, w.kubelet("data"))
	w.manager("data")
	w.settle()
	w.requireSize("data", 10*gib)
	require.NotContains(t, w.object("data").Annotations, pv.AnnotationPreResizeCapacity)
}

// A growth that is impossible is refused, with a reason. Once the user lowers the request, it succeeds, however often
// kube-controller-manager repeats the first one.
func TestRefusedAndLowered(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.bind("other", gib)
	w.settle()
	before, _ := w.ledger.Offer("n1", w.spec)
	w.ask("data", 400*volume.TiB)
	for range 3 {
		w.manager("data")
		w.settle()
		claim := w.claim("data")
		require.Equal(t, refused, state(claim))
		require.Contains(t, w.words("data"), "Refused: cannot grow from 1Gi to 400Ti: a volume of 439804651110400 bytes (400 TiB) takes")
		require.Contains(t, w.words("data"), "ask for less, which may be anything above 1Gi")
		require.True(t, w.kubelet("data"), "its pod starts")
	}
	require.Len(t, w.told, 1, "it is told once: %v", w.told)
	after, _ := w.ledger.Offer("n1", w.spec)
	require.Equal(t, before, after, "and takes nothing from others")

	w.ask("data", 97*gib)
	w.settle()
	require.Contains(t, w.words("data"), "Waiting")
	claim := w.claim("data")
	allocated := claim.Status.AllocatedResources[storage]
	require.Equal(t, int64(97*gib), allocated.Value())

	w.ask("data", 2*gib)
	w.settle()
	claim = w.claim("data")
	allocated = claim.Status.AllocatedResources[storage]
	require.Equal(t, int64(2*gib), allocated.Value(), "what counts against a quota falls, too")
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 2*gib)
}

// A request can be lowered while kube-controller-manager has marked the claim with the earlier request.
func TestLoweredWhileItIsTried(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 90*volume.TiB)
	w.manager("data")
	w.ask("data", 2*gib)
	w.manager("data")
	w.settle()
	w.manager("data")
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 2*gib)
}

func TestWaitsInOrder(t *testing.T) {
	w := newWorld(t, 30*gib)
	for _, name := range []string{"first", "second", "other"} {
		w.bind(name, gib)
	}
	w.bind("full", 22*gib)
	w.settle()
	w.ask("second", 20*gib)
	w.settle()
	w.now = w.now.Add(time.Minute)
	w.ask("first", 20*gib) // would be first by name
	w.ask("other", 2*gib)
	w.settle()
	require.Contains(t, w.words("second"), "Waiting: waits to grow from 1Gi to 20Gi: ")
	require.Contains(t, w.words("second"), `more are needed and volume group "flexlvm" can still promise`)
	require.Contains(t, w.words("first"), "Waiting")
	require.Equal(t, pending, state(w.claim("other")), "what fits is not kept waiting by what does not")

	w.restart()
	w.settle()
	require.NotContains(t, strings.Join(w.told[3:], "\n"), "GrowthWaiting", "nobody is told again by the next process")
	delete(w.api, "/pvc-full")
	delete(w.made, "pvc-full")
	w.ledger.Gone("pvc-full")
	w.daemonReports()
	w.settle()
	require.Equal(t, pending, state(w.claim("second")), "who asked first has it")
	require.Contains(t, w.words("first"), "Waiting")
}

// Volumes are evicted for a growth, as many as needed, and the capacity is raised after that.
func TestRoomIsMade(t *testing.T) {
	for name, layout := range map[string]func(*volume.Spec){
		"linear": func(*volume.Spec) {}, "thin": thin(0), "thin, overcommitted": thin(2000),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 40*gib, layout)
			w.bind("data", gib)
			for i := range 5 {
				w.make(fmt.Sprintf("old-%d", i), volume.Unreferenced, 6*gib)
			}
			w.settle()
			require.Zero(t, w.evicted)
			w.ask("data", 20*gib)
			w.manager("data")
			w.serve()
			require.Equal(t, fmt.Sprint(int64(20*gib)), w.object("data").Annotations[pv.AnnotationGrowingTo])
			require.Contains(t, w.words("data"), "MakingRoom: grows from 1Gi to 20Gi as soon as its room is free")
			own := capacity(w.object("data"))
			require.Equal(t, int64(gib), own.Value(), "not before the room is free")
			w.restart()
			w.settle()
			require.Equal(t, pending, state(w.claim("data")))
			require.True(t, w.kubelet("data"))
			w.settle()
			w.requireSize("data", 20*gib)
			require.Equal(t, 2, w.evicted, "10 GiB are missing, and no more is needed")
		})
	}
}

// A promise ends with its request.
func TestPromiseEnds(t *testing.T) {
	w := newWorld(t, 40*gib)
	w.bind("data", gib)
	w.make("old", volume.Unreferenced, 30*gib)
	w.settle()
	w.ask("data", 30*gib)
	w.serve()
	require.Contains(t, w.object("data").Annotations, pv.AnnotationGrowingTo)
	w.ask("data", 50*gib)
	w.serve()
	require.NotContains(t, w.object("data").Annotations, pv.AnnotationGrowingTo)
	require.Contains(t, w.words("data"), "Refused")
	w.ask("data", 2*gib)
	w.settle()
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 2*gib)
	require.Zero(t, w.evicted)
}

// A capacity that Kubernetes has raised before this release is lowered if there is no room for it, and the growth is
// then handled like any other.
func TestCapacityThatWasWrittenUnasked(t *testing.T) {
	for name, size := range map[string]volume.Bytes{
		"more than the pool": 400 * volume.TiB, "more than there is": 90 * gib, "more than is supported": 600 * volume.TiB,
	} {
		for _, was := range []corev1.ClaimResourceStatus{"", pending, underway, failed} {
			t.Run(name+" "+string(was), func(t *testing.T) {
				w := newWorld(t, 100*gib)
				w.bind("data", gib)
				w.bind("other", 40*gib)
				object := w.object("data")
				object.Spec.Capacity = room(size)
				w.store(object)
				claim := w.claim("data")
				claim.Spec.Resources.Requests, claim.Status.AllocatedResources = room(size), room(size)
				if was != "" {
					claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{storage: was}
				}
				w.asked["data"] = size
				w.store(claim)
				for range 3 {
					w.daemon()
					w.watch()
					_, _ = w.c.serve(t.Context(), "n1")
					require.True(t, was != "" || state(w.claim("data")) != pending, "it is not left to the node")
					w.now = w.now.Add(lackGrace)
				}
				w.settle()
				if was == underway { // the room is kept for a while, because a call may still grow the volume
					w.now = w.now.Add(5 * time.Minute)
					w.settle()
				}
				own := capacity(w.object("data"))
				require.Equal(t, int64(gib), own.Value())
				require.Equal(t, refused, state(w.claim("data")))
				require.NotEmpty(t, w.words("data"))
				require.True(t, w.kubelet("data"))
				offer, _ := w.ledger.Offer("n1", w.spec)
				require.Greater(t, offer.MaxVolumeSize, 50*gib, "others have their room again")

				w.ask("data", 5*gib)
				w.settle()
				require.True(t, w.kubelet("data"))
				w.settle()
				w.requireSize("data", 5*gib)
			})
		}
	}
}

// A granted growth that is not finished survives a restart of the provisioner.
func TestGrantedOutlivesTheProvisioner(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 60*gib)
	w.settle()
	w.restart()
	w.settle()
	larger := capacity(w.object("data"))
	require.Equal(t, int64(60*gib), larger.Value())
	offer, _ := w.ledger.Offer("n1", w.spec)
	require.Less(t, offer.MaxVolumeSize, 40*gib, "and is kept")
}

// A growth that fails on the node is taken back, so that its pod starts. It is retried later, or immediately if the
// request is lowered.
func TestNodeCannotGrowIt(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 60*gib)
	w.settle()
	w.make("foreign", "", 50*gib) // allocated by others, and not reported yet
	require.False(t, w.kubelet("data"))
	w.serve()
	require.Equal(t, underway, state(w.claim("data")), "kubelet tries again")
	w.now = w.now.Add(nodeErrorGrace)
	w.serve()
	require.True(t, w.kubelet("data"), "the pod starts")
	delete(w.made, "foreign")
	w.settle()
	require.Contains(t, w.words("data"), "the node could not grow it")
	own := capacity(w.object("data"))
	require.Equal(t, int64(gib), own.Value())

	w.now = w.now.Add(regrowAfter)
	w.settle()
	require.True(t, w.kubelet("data"))
	w.settle()
	w.requireSize("data", 60*gib)
}

// A claim that is just being bound, for example after a move to another driver, has no capacity yet. There is no
// growth to take back.
func TestNothingGrowsBeforeItIsBound(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.ask("data", 2*gib)
	claim := w.claim("data")
	claim.Status.Capacity = nil
	s := input{claim: claim, object: w.object("data"), now: w.now}
	require.Empty(t, decide(s, func(volume.Bytes) ledger.Answer { panic("asked") }))
}

// The provisioner is killed at every step of a grant, with its last write carried out or not. Its successor finishes
// the growth.
func TestKilledAtEveryStep(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, layout := range []func(*volume.Spec){func(*volume.Spec) {}, thin(2000)} {
			for dies := range 8 {
				w := newWorld(t, 40*gib, layout)
				w.bind("data", gib)
				w.make("old", volume.Unreferenced, 30*gib)
				w.settle()
				w.ask("data", 20*gib)
				w.manager("data")
				w.dies, w.lost = dies, lost
				for range 4 {
					w.daemon()
					w.serve()
					require.True(t, w.kubelet("data"))
				}
				w.restart()
				w.manager("data")
				w.settle()
				require.True(t, w.kubelet("data"))
				w.settle()
				w.requireSize("data", 20*gib)
			}
		}
	}
}

// A promise stays while it is unknown whether it was written.
func TestAnswerLost(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.bind("data", gib)
	w.settle()
	w.ask("data", 60*gib)
	w.dies = 1 // the claim is cleared, and it is unknown whether the capacity was raised
	w.serve()
	for range 2 {
		offer, _ := w.ledger.Offer("n1", w.spec)
		require.Less(t, offer.MaxVolumeSize, 40*gib)
		w.ledger.NotWritten(w.object("data"))
	}
}

func TestWhatDoesNotConcernUs(t *testing.T) {
	w := newWorld(t, 40*gib)
	w.bind("data", gib)
	w.ask("data", 2*gib)
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume){
		"another driver": func(_ *corev1.PersistentVolumeClaim, o *corev1.PersistentVolume) {
			o.Spec.FlexVolume.Driver = "example.org/x"
		},
		"readers of a dataset": func(_ *corev1.PersistentVolumeClaim, o *corev1.PersistentVolume) { delete(o.Labels, pv.LabelNode) },
		"another claim":        func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.UID = "another" },
		"released": func(_ *corev1.PersistentVolumeClaim, o *corev1.PersistentVolume) {
			o.Status.Phase = corev1.VolumeReleased
		},
		"without a volume": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) { c.Spec.VolumeName = "" },
		"content": func(c *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			c.Spec.Resources.Requests = room(gib)
		},
	} {
		claim, object := w.claim("data"), w.object("data")
		change(claim, object)
		require.False(t, wanting(claim, object), name)
	}
	claim, object := w.claim("data"), w.object("data")
	require.True(t, wanting(claim, object))
	claim.DeletionTimestamp = &metav1.Time{Time: w.now}
	require.Empty(t, decide(input{claim: claim, object: object}, nil))
}
