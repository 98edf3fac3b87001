package growth

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// unknownRooms are reports from which it is unknown whether a pool has the room for a promise.
var unknownRooms = map[string]func(*world){
	"LVM fails": func(w *world) {
		w.reportsPools(metav1.Condition{Type: flexlvmv1.ConditionReady, Status: metav1.ConditionFalse, Reason: flexlvmv1.ReasonLVMFailed, Message: "LVM has failed"}, w.poolWith(w.size))
	},
	"without the pool": func(w *world) { w.reportsPools(metav1.Condition{}) },
	"deleted": func(w *world) {
		w.ledger.Forget(&flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	},
	"of another group": func(w *world) {
		p := w.poolWith(w.size)
		p.UUID = "AAAAAA-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S"
		w.reportsPools(metav1.Condition{}, p)
	},
	"of a node with an unreadable PersistentVolume": func(w *world) {
		unreadable := w.object("data")
		unreadable.Name = "unreadable"
		unreadable.Spec.FlexVolume.Options[volume.OptionLayout] = "spiral"
		w.ledger.Written(unreadable)
	},
}

func (w *world) poolWith(allocatable volume.Bytes) flexlvmv1.Pool {
	return flexlvmv1.Pool{Name: "flexlvm", UUID: groupUUID, Size: quantity(w.size), Free: quantity(w.free()), Allocatable: quantity(allocatable), ExtentSize: quantity(volume.DefaultExtent)}
}

func (w *world) reportsPools(condition metav1.Condition, pools ...flexlvmv1.Pool) {
	w.ledger.Report(&flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: flexlvmv1.NodeStorageStatus{
		Pools: pools, Conditions: []metav1.Condition{condition},
	}})
}

// making returns a world with a growth for which room is made.
func making(t *testing.T, name string) *world {
	w := newWorld(t, 40*gib)
	w.bind(name, gib)
	w.make("old", volume.Unreferenced, 30*gib)
	w.settle()
	w.ask(name, 20*gib)
	w.serve()
	require.True(t, w.promised(name, 20*gib), w.words(name))
	return w
}

// A promise stays while it is unknown whether its pool has the room, for example after one failed round of its node.
// Its node continues to make room, and no event is sent.
func TestPromiseStaysWhileItsRoomIsUnknown(t *testing.T) {
	for name, happens := range unknownRooms {
		t.Run(name, func(t *testing.T) {
			w := making(t, "data")
			events := len(w.told)
			happens(w)
			w.serve()
			require.True(t, w.promised("data", 20*gib), w.words("data"))
			require.NotContains(t, w.words("data"), "its room stays reserved", "it may last a moment")
			for range 3 {
				w.now = w.now.Add(lackGrace)
				w.serve()
			}
			require.True(t, w.promised("data", 20*gib), w.words("data"))
			require.Contains(t, w.words("data"), "MakingRoom: grows from 1Gi to 20Gi as soon as its room is free: its room stays reserved, but ")
			require.Len(t, w.told, events)

			w.ledger.Gone("unreadable")
			w.settle()
			require.True(t, w.kubelet("data"))
			w.settle()
			w.requireSize("data", 20*gib)
		})
	}
}

// While its room is unknown, a promise ends with its request, and a growth that was not promised is not.
func TestPromiseEndsWhileItsRoomIsUnknown(t *testing.T) {
	for name, size := range map[string]volume.Bytes{"lowered": 10 * gib, "raised": 25 * gib, "withdrawn": gib} {
		t.Run(name, func(t *testing.T) {
			w := making(t, "data")
			unknownRooms["LVM fails"](w)
			w.ask("data", size)
			w.serve()
			require.NotContains(t, w.object("data").Annotations, pv.AnnotationGrowingTo)
			if size > gib {
				require.Contains(t, w.words("data"), `: nothing more is promised in volume group "flexlvm": LVM has failed`)
				require.Contains(t, w.words("data"), string(ledger.Waiting))
			}
		})
	}
}

// A promise in a closed pool that lacks room for longer than a moment is withdrawn: a granted growth there would be taken
// back for it.
func TestPromiseEndsInAClosedPoolThatLacksRoom(t *testing.T) {
	w := making(t, "data")
	closed := w.poolWith(10 * gib)
	closed.Closed = "its metadata is full"
	w.reportsPools(metav1.Condition{}, closed)
	w.serve()
	require.True(t, w.promised("data", 20*gib), w.words("data"))
	w.now = w.now.Add(lackGrace)
	w.serve()
	require.False(t, w.promised("data", 20*gib))
	require.Contains(t, w.words("data"), string(ledger.Waiting))
}
