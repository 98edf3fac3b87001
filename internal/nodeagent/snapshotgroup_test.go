package nodeagent_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/lvm"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// groupObjects returns the PersistentVolumes of a group of snapshots of these volumes.
func groupObjects(t testing.TB, sources ...volume.Name) (out []*corev1.PersistentVolume) {
	t.Helper()
	for _, name := range sources {
		spec := volume.Spec{Group: "flexlvm", Name: name, Size: volume.GiB, Layout: volume.Linear, Kind: volume.Claim, Cluster: evictiontest.Cluster, Namespace: "db"}
		source := persistentvolume.New(pv.Description{Name: string(name), Node: "node-1", Hostname: "node-1", Door: pv.CSI, Spec: spec, Charged: spec.Charge()}, nil, corev1.PersistentVolumeReclaimDelete)
		object, _, err := persistentvolume.Snapshot(source, "snap-"+name, 0)
		require.NoError(t, err)
		object.UID, object.Status.Phase = types.UID("uid-snap-"+name), corev1.VolumeAvailable
		out = append(out, object)
	}
	persistentvolume.Grouped("group-1", out)
	return out
}

// The snapshots of a group are taken by one call, when all their PersistentVolumes exist. The reason of a failure is
// recorded on each of them. If a daemon was killed before it had recorded all snapshots as taken, the next one
// records the rest.
func TestSnapshotGroupIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.claimed("a", 10)
	r.claimed("b", 10)
	r.engine.with(func() {
		for i := range r.engine.volumes {
			r.engine.volumes[i].AllocatedWhenFull = volume.GiB
		}
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "group") {
				return errors.New("it took too long")
			}
			return nil
		}
	})
	objects := groupObjects(t, "a", "b")
	r.start()
	r.api.put(objects[1])
	r.rounds(3)
	require.Empty(t, r.engine.called("group"), "one is not there yet")
	r.api.put(objects[0])
	said := func(key, value string) func() bool {
		return func() bool {
			for _, o := range objects {
				if got := r.api.volume(o.Name).Annotations[key]; got == "" || value != "" && got != value {
					return false
				}
			}
			return true
		}
	}
	r.eventually(said(pv.AnnotationSnapshotProblem, "it took too long"), "it is not said")
	r.eventually(func() bool { return len(r.api.told("SnapshotNotTaken")) == 2 }, "no event")
	r.engine.with(func() { r.engine.fault = nil })
	r.clock.pass(soon)
	r.eventually(said(pv.AnnotationSnapshotTaken, ""), "they are not taken")
	require.Subset(t, r.engine.names(), []string{"snap-a ready", "snap-b ready"})
	calls := len(r.engine.called("group of 2"))
	require.Greater(t, calls, 1)

	unsaid := r.api.volume("snap-b")
	delete(unsaid.Annotations, pv.AnnotationSnapshotTaken)
	r.api.put(unsaid)
	again := said(pv.AnnotationSnapshotTaken, "")
	r.eventually(func() bool {
		r.clock.pass(soon) // a write of the daemon may still be based on the state before
		return again()
	}, "it is not said of the second")
	require.Greater(t, len(r.engine.called("group of 2")), calls, "all are looked at together again")
}

// The lack of room is recorded only after evictions have had their time, because a snapshot that is withdrawn needs
// no room any more.
func TestSnapshotAwaitsRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	object := r.snapshotWithoutRoom()
	object.CreationTimestamp = metav1.NewTime(r.clock.now())
	r.start()
	r.api.put(object)
	r.eventually(func() bool { return len(r.engine.called("clone")) > 0 }, "it is not tried")
	r.rounds(2)
	require.Empty(t, r.api.volume("snap-a").Annotations[pv.AnnotationSnapshotProblem])
	r.clock.pass(time.Minute)
	r.eventually(r.saysWithoutRoom, "it is never said")
	r.eventually(func() bool { return len(r.api.told("SnapshotNotTaken")) == 1 }, "no event")
}

// A node whose clock is behind or ahead of the API server's waits exactly as long as any other.
func TestSnapshotWithoutRoomOfAnotherClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"behind": time.Hour, "ahead": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			object := r.snapshotWithoutRoom()
			object.CreationTimestamp = metav1.NewTime(r.clock.now().Add(ahead))
			r.start()
			r.api.put(object)
			for tries := range 2 {
				r.eventually(func() bool { return len(r.engine.called("clone")) > tries }, "it is not tried")
				r.rounds(2)
				require.Empty(t, r.api.volume("snap-a").Annotations[pv.AnnotationSnapshotProblem])
				r.clock.pass(10 * time.Second)
			}
			r.clock.pass(time.Minute)
			r.eventually(r.saysWithoutRoom, "it is never said")
		})
	}
}

// snapshotWithoutRoom returns the PersistentVolume of a snapshot that cannot be taken.
func (r *rig) snapshotWithoutRoom() *corev1.PersistentVolume {
	r.claimed("a", 10)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "clone") {
				return fmt.Errorf("%w: 3 are missing", lvm.ErrNoSpace)
			}
			return nil
		}
	})
	return groupObjects(r.t, "a")[0]
}

func (r *rig) saysWithoutRoom() bool {
	return strings.Contains(r.api.volume("snap-a").Annotations[pv.AnnotationSnapshotProblem], "3 are missing")
}
