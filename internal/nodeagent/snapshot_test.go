package nodeagent_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// snapshotObject returns the PersistentVolume of a snapshot of the claim's volume "source".
func snapshotObject(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	spec := volume.Spec{
		Group: "flexlvm", Name: "source", Size: volume.GiB, Layout: volume.Thin, ThinPool: "pool", Kind: volume.Claim,
		Cluster: evictiontest.Cluster, Namespace: "db", Encrypted: true,
	}
	source := persistentvolume.New(pv.Description{Name: "source", Node: "node-1", Hostname: "node-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
	object, _, err := persistentvolume.Snapshot(source, "snap", 0)
	require.NoError(t, err)
	object.UID, object.Status.Phase = types.UID("uid-snap"), corev1.VolumeAvailable
	return object
}

// A snapshot is taken once, even of an encrypted volume. If it cannot be taken, an annotation gives the reason. Only
// the deletion of its PersistentVolume gives it up.
func TestSnapshotIsTakenOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.fullPool()
	r.start()
	r.rounds(1)
	r.api.put(snapshotObject(t))
	r.eventually(func() bool {
		return r.api.volume("snap").Annotations[pv.AnnotationSnapshotProblem] == "the pool is full"
	}, "it is not said")
	r.eventually(func() bool { return len(r.api.told("SnapshotNotTaken")) == 1 }, "no event")

	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(func() bool { return r.api.volume("snap").Annotations[pv.AnnotationSnapshotTaken] != "" }, "it is not taken")
	require.NotContains(t, r.api.volume("snap").Annotations, pv.AnnotationSnapshotProblem)
	require.Contains(t, r.engine.names(), "snap ready")
	tries := len(r.engine.called("clone flexlvm/snap"))

	// If its volume is lost, the snapshot is not taken again: the source's content has changed since.
	r.engine.with(func() { r.engine.volumes = without(r.engine.volumes, "snap") })
	r.clock.pass(time.Hour)
	r.rounds(3)
	require.Len(t, r.engine.called("clone flexlvm/snap"), tries)
	require.NotNil(t, r.api.volume("snap"))
}

// A snapshot that is deleted just before its turn is not taken.
func TestSnapshotThatNobodyWantsAnyMore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	asked := make(chan struct{})
	r.engine.beforeWanted = sync.OnceFunc(func() {
		deleted := r.api.volume("snap")
		pvDeleting(deleted)
		r.api.put(deleted)
		r.eventually(func() bool { return r.api.volume("snap") == nil }, "it stays")
		close(asked)
	})
	r.start()
	r.api.put(snapshotObject(t))
	<-asked
	r.rounds(2)
	require.NotContains(t, strings.Join(r.engine.names(), " "), "snap")
	require.Empty(t, r.api.told("SnapshotNotTaken"))
}

// storeObject returns the PersistentVolume of a copy-on-write snapshot that was taken.
func storeObject(t *testing.T, name string, reserve volume.Reserve) *corev1.PersistentVolume {
	t.Helper()
	spec := volume.Spec{Group: "flexlvm", Name: "source", Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: evictiontest.Cluster, Namespace: "db"}
	source := persistentvolume.New(pv.Description{Name: "source", Node: "node-1", Hostname: "node-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
	object, _, err := persistentvolume.Snapshot(source, volume.Name(name), reserve)
	require.NoError(t, err)
	object.UID, object.Status.Phase = types.UID("uid-"+name), corev1.VolumeAvailable
	for key, value := range persistentvolume.Taken(time.Unix(1, 0), volume.GiB) {
		if value != nil {
			object.Annotations[key] = *value
		}
	}
	return object
}

// A snapshot is charged for what its store actually takes, whatever was expected.
func TestStoreIsChargedAsItIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.engine.with(func() {
		for i := range r.engine.volumes {
			r.engine.volumes[i].AllocatedWhenFull = 7 * volume.GiB
		}
	})
	object := storeObject(t, "snap", 0)
	delete(object.Annotations, pv.AnnotationSnapshotTaken)
	require.NotEqual(t, "7516192768", object.Annotations[pv.AnnotationCharged])
	r.start()
	r.api.put(object)
	r.eventually(func() bool { return r.api.volume("snap").Annotations[pv.AnnotationSnapshotTaken] != "" }, "it is not taken")
	require.Equal(t, "7516192768", r.api.volume("snap").Annotations[pv.AnnotationCharged])
}

// A snapshot that fills up gets events with numbers before it is lost, and another event on its PersistentVolume when
// it is. A snapshot with room for all changes gets none.
func TestSnapshotThatOverflows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	holds := func(percent volume.Bytes, overflowed bool) {
		r.store("snap", func(v *inventory.Volume) { v.Stored, v.Overflowed = percent*3*volume.MiB, overflowed })
		r.store("full", func(v *inventory.Volume) { v.Stored = percent * 3 * volume.MiB })
	}
	holds(79, false)
	r.api.put(storeObject(t, "snap", 30))
	r.api.put(storeObject(t, "full", 0))
	r.start()
	r.rounds(2)
	require.Empty(t, r.api.told("SnapshotAlmostFull"))
	holds(81, false)
	r.eventually(func() bool { return len(r.api.told("SnapshotAlmostFull")) > 0 }, "it is not said")
	r.toldNoMore("SnapshotAlmostFull")
	told := r.api.told("SnapshotAlmostFull")
	require.Len(t, told, 1)
	require.Contains(t, told[0], "has used 81% (243 MiB) of the 300 MiB")
	holds(100, true)
	r.eventually(func() bool { return r.api.volume("snap").Annotations[pv.AnnotationSnapshotProblem] != "" }, "it is not said")
	require.Contains(t, r.api.volume("snap").Annotations[pv.AnnotationSnapshotProblem], "overwritten more than the 300 MiB")
	require.NotEmpty(t, r.api.volume("snap").Annotations[pv.AnnotationSnapshotTaken])
	require.NotContains(t, r.api.volume("full").Annotations, pv.AnnotationSnapshotProblem)
	r.eventually(func() bool { return len(r.api.told("SnapshotOverflowed")) > 0 }, "it is not said")
	r.toldNoMore("SnapshotOverflowed")
	require.Len(t, r.api.told("SnapshotOverflowed"), 1)
	r.clock.pass(31 * time.Minute)
	r.eventually(func() bool {
		var again int
		r.api.with(func() { again = r.api.repeated["SnapshotOverflowed"] })
		return again+len(r.api.told("SnapshotOverflowed")) == 2
	}, "the event is forgotten, and the snapshot is still there")
}

// Each threshold that a store exceeds between two rounds gets an event.
func TestStoreThatFillsBetweenRounds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	var percent atomic.Int64
	fill := func(to int64) {
		r.store("snap", func(v *inventory.Volume) { v.Stored = volume.Bytes(to) * 3 * volume.MiB })
		percent.Store(to)
	}
	looks := atomic.Int64{}
	r.config.Interval = time.Hour
	r.config.Fills = func(context.Context) (map[string]int, error) {
		looks.Add(1)
		return map[string]int{"flexlvm-snap": int(percent.Load())}, nil
	}
	fill(10)
	r.api.put(storeObject(t, "snap", 30))
	r.start()
	r.eventually(func() bool { return looks.Load() > 0 }, "nobody looks")
	require.Empty(t, r.api.told("SnapshotAlmostFull"))
	fill(83)
	r.eventually(func() bool { return len(r.api.told("SnapshotAlmostFull")) == 1 }, "it is not told of")
	fill(87)
	r.eventually(func() bool { return len(r.api.told("SnapshotAlmostFull")) == 2 }, "the next step is not told of")
	require.Contains(t, r.api.told("SnapshotAlmostFull")[1], "has used 87%")
}

// A snapshot with room for all changes is lost with the disk of its store. Until the machine reboots, only the kernel
// knows that, so the next round does not wait for the interval.
func TestSnapshotWhoseDiskFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	var percent atomic.Int64
	state := func(overflowed bool) {
		r.store("full", func(v *inventory.Volume) { v.Overflowed = overflowed })
	}
	looks := atomic.Int64{}
	r.config.Interval = time.Hour
	r.config.Fills = func(context.Context) (map[string]int, error) {
		looks.Add(1)
		return map[string]int{"flexlvm-full": int(percent.Load())}, nil
	}
	state(false)
	r.api.put(storeObject(t, "full", 0))
	r.start()
	r.eventually(func() bool { return looks.Load() > 0 }, "nobody looks")
	state(true)
	percent.Store(100)
	r.eventually(func() bool { return r.api.volume("full").Annotations[pv.AnnotationSnapshotProblem] != "" }, "it is not recorded")
	require.Contains(t, r.api.volume("full").Annotations[pv.AnnotationSnapshotProblem], "or the disk that they are on has failed")
}

// After a reboot, LVM may show a snapshot as valid again that its PersistentVolume records as lost. It is not copied. A
// copy that is complete no longer needs it.
func TestCopyOfALostSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.engine.with(func() {
		for _, name := range []volume.Name{"snap", "whole"} {
			v := r.engine.volumes[0]
			v.Name, v.UUID = name, "uuid-"+string(name)
			if name == "snap" {
				v.Kind, v.SnapshotOf = volume.Snapshot, "source"
			} else {
				v.State, v.Fill = volume.Creating, volume.FillCopied
			}
			r.engine.volumes = append(r.engine.volumes, v)
		}
	})
	lost := storeObject(t, "snap", 0)
	lost.Annotations[pv.AnnotationSnapshotProblem] = "it has overflowed"
	r.api.put(lost)
	for _, name := range []string{"copy", "whole"} {
		r.api.put(object(name, 10, func(o *corev1.PersistentVolume) { o.Spec.FlexVolume.Options[volume.OptionCloneOf] = "snap" }))
	}
	r.start()
	r.eventually(func() bool { return len(r.engine.called("clone flexlvm/whole of snap")) > 0 }, "the complete copy is not finished")
	r.eventually(func() bool { return len(r.api.told("VolumeNotCopied")) > 0 }, "no event")
	require.Contains(t, r.api.told("VolumeNotCopied")[0], "copy snapshot flexlvm/snap: it is lost, as its PersistentVolume says: it has overflowed; it is retried")
	r.rounds(2)
	require.Empty(t, r.engine.called("clone flexlvm/copy"))
	require.NotContains(t, r.engine.names(), "copy ready")
}

// After a boot, the stores of snapshots are watched from the first inventory on, when none is active yet, and although
// the API server does not answer. Once a disk has failed, an inventory records that without the API server.
func TestStoresAreWatchedInFailedRounds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.store("full", func(v *inventory.Volume) { v.Active = false })
	looks := atomic.Int64{}
	r.config.Fills = func(context.Context) (map[string]int, error) {
		looks.Add(1)
		return nil, nil
	}
	r.api.fail(http.StatusInternalServerError)
	r.start()
	r.eventually(func() bool { return looks.Load() > 0 }, "nobody looks")
}

func TestSnapshotIsRemovedWhenItIsDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("source", 10)
	r.start()
	r.api.put(snapshotObject(t))
	r.eventually(func() bool { return r.api.volume("snap").Annotations[pv.AnnotationSnapshotTaken] != "" }, "it is not taken")
	released := r.api.volume("snap")
	released.Status.Phase = corev1.VolumeReleased // it can never have been bound
	r.api.put(released)
	r.rounds(3)
	require.Contains(t, r.engine.names(), "snap ready")
	deleted := r.api.volume("snap")
	pvDeleting(deleted)
	r.api.put(deleted)
	r.eventually(func() bool { return r.api.volume("snap") == nil }, "it stays")
	r.eventually(func() bool { return !strings.Contains(strings.Join(r.engine.names(), " "), "snap") }, "its volume stays")
	require.Contains(t, r.engine.names(), "source ready")
}

// store replaces the copy-on-write snapshot with this name of the engine's first volume, whose name is source. Its store
// has 300 MiB.
func (r *rig) store(name string, change func(*inventory.Volume)) {
	r.engine.with(func() {
		v := r.engine.volumes[0]
		v.Name, v.UUID, v.Kind, v.SnapshotOf, v.Allocated = volume.Name(name), "uuid-"+name, volume.Snapshot, "source", 300*volume.MiB
		change(&v)
		r.engine.volumes = append(without(r.engine.volumes, v.Name), v)
	})
}

func without(all []inventory.Volume, name volume.Name) (out []inventory.Volume) {
	for _, v := range all {
		if v.Name != name {
			out = append(out, v)
		}
	}
	return out
}
