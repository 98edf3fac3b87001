package nodeagent_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/eviction/evictiontest"
	"github.com/flexlvm/flexlvm/internal/node"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	datasetHash = "0123456789abcdef"
	replicaName = "ds-" + datasetHash
	replicaPV   = "pvc-replica"
)

// All steps of a replica's eviction: the request, the removed label, the wait, the confirmation, the deletion of its
// claim and volume, and only then of its PersistentVolume.
func TestReplicaGoes(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.eventually(r.asked, "the replica is not asked to go")
	require.Equal(t, evictiontest.Now.Format(time.RFC3339), r.saidOf(replica.AnnotationEvict))
	r.rounds(3)
	require.False(t, r.evictable(), "pods may still be sent here")
	require.Equal(t, "60Gi", replicasOf(r))
	r.unlabel()
	r.rounds(3)
	require.False(t, r.evictable(), "the scheduler may have known the label a moment ago")
	r.clock.pass(11 * time.Second)
	r.eventually(r.evictable, "nobody uses it")
	r.rounds(3)
	require.Contains(t, r.engine.names(), replicaName+" ready", "its claim is there")
	require.Empty(t, r.engine.called("release flexlvm/"+replicaName))

	var early []string
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if resource == "persistentvolumes" && verb == "delete" {
				early = append(early, r.engine.names()...)
			}
			return false
		}
	})
	r.deleteClaim()
	r.eventually(func() bool { return r.api.volume(replicaPV) == nil }, "the PersistentVolume stays")
	require.Equal(t, []string{"settled ready"}, r.engine.names())
	r.api.with(func() {
		require.NotContains(t, early, replicaName+" unreferenced", "its name would be free before its volume is gone")
		require.NotContains(t, early, replicaName+" ready")
	})

	r.eventually(func() bool { return len(r.api.told("ReplicaEvicted")) == 1 }, "the VolumeManager is not told")
	require.Contains(t, r.api.told("ReplicaEvicted")[0], "VolumeManager/vm: volume flexlvm/"+replicaName+" was evicted (Replica): volumes promised on this node needed room")
	r.api.with(func() {
		for _, e := range r.api.events {
			if e.Reason == "ReplicaEvicted" {
				require.Equal(t, []any{"db", "uid-of-vm", "flexlvm.io/v1"}, []any{e.Namespace, string(e.InvolvedObject.UID), e.InvolvedObject.APIVersion})
			}
		}
	})
	r.toldNoMore("VolumeEvicted")
	require.Len(t, r.api.told("VolumeEvicted"), 1, "on the node")
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
	require.Equal(t, "Replica", r.status().Evictions[0].Reason)
	require.EqualValues(t, 2, r.metric("flexlvm_replica_eviction_steps_total"))
	require.EqualValues(t, 1, r.metric("flexlvm_evictions_total"))
}

// A daemon that starts after any step continues from the annotations, and waits for the whole time again.
func TestReplicaGoesThoughDaemonsDie(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	stop := r.start()
	again := func() {
		stop()
		stop = r.start()
	}
	r.eventually(r.asked, "not asked to go")
	again()
	at := r.saidOf(replica.AnnotationEvict)
	r.rounds(3)
	require.Equal(t, at, r.saidOf(replica.AnnotationEvict), "asked once")
	r.unlabel()
	r.rounds(2)
	r.clock.pass(9 * time.Second)
	again()
	r.rounds(2)
	r.clock.pass(9 * time.Second)
	r.rounds(2)
	require.False(t, r.evictable(), "this one has waited for nine seconds only")
	r.clock.pass(2 * time.Second)
	r.eventually(r.evictable, "not confirmed")
	again()
	r.rounds(2)
	r.engine.with(func() {
		r.engine.fault = func(call string) error {
			if strings.HasPrefix(call, "remove ") {
				return node.ErrInUse
			}
			return nil
		}
	})
	r.deleteClaim()
	r.eventually(func() bool { return slices.Contains(r.engine.names(), replicaName+" unreferenced") }, "not released")
	r.rounds(3)
	require.NotNil(t, r.api.volume(replicaPV), "its volume is there still")
	again()
	r.engine.with(func() { r.engine.fault = nil })
	r.eventually(func() bool { return r.api.volume(replicaPV) == nil }, "the PersistentVolume stays")
	require.Equal(t, []string{"settled ready"}, r.engine.names())
}

// A pod that was bound just now keeps the replica, whatever the watch shows, and whichever claim it uses.
func TestReplicaThatAPodUses(t *testing.T) {
	for name, claim := range map[string]string{"readers": "vm-images", "the replica's own": "data-" + replicaPV, "what the readers' volume is bound to": "renamed", "that of another namespace": "offered"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicaRig(t)
			if claim == "renamed" {
				r.api.with(func() {
					r.api.readers = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: replica.ReadersPV(datasetHash)}}
					r.api.readers.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "db", Name: claim}
				})
			}
			if claim == "offered" {
				r.api.with(func() {
					r.api.readers = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: replica.ReadersPV("fedcba9876543210"), Labels: map[string]string{replica.LabelShared: datasetHash}}}
					r.api.readers.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "db", Name: claim}
				})
			}
			r.start()
			r.untilUnlabelled()
			r.pod(claim, corev1.PodPending, false)
			r.clock.pass(11 * time.Second)
			r.eventually(func() bool { return !r.asked() }, "not withdrawn")
			require.Empty(t, r.saidOf(replica.AnnotationUnlabelled), "the controller gives the label back")
			require.Empty(t, r.saidOf(replica.AnnotationEvictable))
			require.Contains(t, r.engine.names(), replicaName+" ready")
			require.Equal(t, "LRU", r.saidOf(replica.AnnotationEviction), "the rest stays")
		})
	}
}

// A replica that the last check finds in use is not requested again at once, and its room is missing meanwhile.
func TestReplicaInUseIsRequestedAgainLater(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	r.pod("vm-images", corev1.PodPending, false) // the watch does not show it
	r.clock.pass(11 * time.Second)
	r.eventually(func() bool { return !r.asked() }, "not withdrawn")
	r.eventually(func() bool { return r.condition("Shortfall").Status == metav1.ConditionTrue }, "no shortfall")
	require.Contains(t, r.condition("Shortfall").Message, "60 GiB in 1 replica of a dataset cannot be evicted: in use")
	written := r.api.requests("patch persistentvolumes")
	r.clock.pass(45 * time.Second)
	r.rounds(3)
	require.Equal(t, written, r.api.requests("patch persistentvolumes"), "it is requested again")
	require.Equal(t, "0", replicasOf(r), "its room is on offer")
	r.api.with(func() { delete(r.api.pods, "pod") })
	r.clock.pass(time.Minute)
	r.untilUnlabelled()
	r.clock.pass(11 * time.Second)
	r.eventually(r.evictable, "nobody uses it any more")
}

// No eviction is requested while the watch shows a pod that uses the replica. A pod that has ended, such as the
// loader's, does not keep it.
func TestReplicaOfAPodThatEnds(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.pod("vm-images", corev1.PodRunning, false)
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(3)
	require.False(t, r.asked(), "a pod uses it")
	r.pod("vm-images", corev1.PodSucceeded, true)
	r.untilUnlabelled()
	r.pod("vm-images", corev1.PodRunning, true)
	r.eventually(func() bool { return !r.asked() }, "not withdrawn")
	r.api.with(func() { r.api.nodeLabels = map[string]string{replica.NodeLabel(datasetHash): "true"} })
	r.pod("vm-images", corev1.PodFailed, true)
	r.untilUnlabelled()
	r.clock.pass(11 * time.Second)
	r.eventually(r.evictable, "nobody uses it any more")
}

// A failed request keeps the replica.
func TestReplicaOfWhichLittleIsKnown(t *testing.T) {
	for name, fail := range map[string]string{
		"the node": "get metadata of nodes", "the pods": "list pods", "the readers": "get persistentvolumes", "the replicas": "list persistentvolumes",
		"the pods that wait": "list waiting pods", "their claims": "get persistentvolumeclaims", "the write fails": "patch persistentvolumes",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicaRig(t)
			r.start()
			r.untilUnlabelled()
			r.pod("vm-images", corev1.PodPending, false)
			r.api.with(func() { // it has no node yet, and this one may be chosen
				r.api.waiting = []corev1.Pod{*r.api.pods["pod"]}
				r.api.waiting[0].Spec.NodeName = ""
				delete(r.api.pods, "pod")
			})
			r.api.fail(http.StatusInternalServerError, fail)
			r.clock.pass(11 * time.Second)
			tried := r.api.requests(fail)
			r.eventually(func() bool { return r.api.requests(fail) > tried }, "not tried")
			r.rounds(3)
			require.False(t, r.evictable())
			require.True(t, r.asked())
			r.api.mend()
			r.eventually(func() bool {
				r.clock.pass(time.Second)
				return r.evictable()
			}, "it does not go on")
		})
	}
}

// The controller reports that the label is gone, but the node still has it.
func TestReplicaWhoseLabelStays(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	r.api.with(func() { r.api.nodeLabels = map[string]string{replica.NodeLabel(datasetHash): "false"} })
	asked := r.api.requests("get metadata of nodes")
	r.clock.pass(11 * time.Second)
	r.eventually(func() bool { return r.api.requests("get metadata of nodes") > asked }, "not looked at")
	r.rounds(3)
	require.Equal(t, asked+1, r.api.requests("get metadata of nodes"), "it is retried too early: the clock stands")
	require.False(t, r.evictable())
	r.api.with(func() { r.api.nodeLabels = nil })
	r.clock.pass(time.Minute)
	r.eventually(r.evictable, "it does not go on")
}

// The PersistentVolume changes while the pods are checked, so the result no longer counts.
func TestReplicaThatChangesMeanwhile(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	var once sync.Once
	r.api.with(func() {
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if verb == "list" && resource == "pods" {
				once.Do(func() {
					r.api.put(replicaObject(60)) // without the request for its eviction
					r.api.put(object("new", 70, pvReleased))
				})
			}
			return false
		}
	})
	r.clock.pass(11 * time.Second)
	r.eventually(func() bool { return r.api.requests("patch persistentvolumes") > 1 }, "not tried")
	r.rounds(2)
	require.False(t, r.evictable())
}

// The request is withdrawn when the room is no longer needed.
func TestReplicaThatIsNotNeeded(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	r.api.with(func() {
		gone := r.api.volumes["new"]
		delete(r.api.volumes, "new")
		r.api.changed("DELETED", gone)
	})
	r.eventually(func() bool { return !r.asked() }, "not withdrawn")
	require.Empty(t, r.saidOf(replica.AnnotationUnlabelled))
	r.clock.pass(time.Minute)
	r.rounds(3)
	require.False(t, r.evictable())
}

func TestReplicaInADryRun(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.config.DryRun = true
	r.start()
	r.eventually(r.readyIs("DryRun"), "no report")
	r.rounds(3)
	require.False(t, r.asked())
	require.Zero(t, r.api.requests("patch persistentvolumes"))
	require.Equal(t, "60Gi", replicasOf(r))
}

// A replica whose claim is gone is removed immediately, not at the next interval, because a volume waits for its
// room.
func TestReplicaGoesAtOnce(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.config.Interval = time.Hour
	now := evictiontest.Now.Format(time.RFC3339)
	r.api.put(replicaObject(60, annotated(replica.AnnotationEvict, now), annotated(replica.AnnotationUnlabelled, now), annotated(replica.AnnotationEvictable, now)))
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.deleteClaim()
	r.eventually(func() bool { return r.api.volume(replicaPV) == nil }, "the PersistentVolume stays")
	require.Equal(t, []string{"settled ready"}, r.engine.names())
}

// When a VolumeManager is deleted, the claims of its replicas are deleted, and then the replicas are released like
// other volumes, whatever their eviction policy. The same holds if a person deletes the claim.
func TestReplicaThatIsGivenUp(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.api.put(replicaObject(60, annotated(replica.AnnotationEviction, "Never")))
	r.start()
	r.eventually(r.readyIs("Ready"), "not ready")
	r.rounds(2)
	require.False(t, r.asked(), "policy Never")
	r.deleteClaim()
	r.eventually(func() bool { return r.api.volume(replicaPV) == nil }, "the PersistentVolume stays")
	require.Equal(t, []string{"settled ready"}, r.engine.names())
	r.eventually(func() bool { return len(r.status().Evictions) == 1 }, "not in the report")
	require.Equal(t, string(eviction.ReasonImmediate), r.status().Evictions[0].Reason)
	require.Empty(t, r.api.told("ReplicaEvicted"), "nothing was evicted")
}

// A replica without a PersistentVolume is an orphan.
func TestReplicaWithoutAPersistentVolume(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.api.with(func() { delete(r.api.volumes, replicaPV) })
	r.start()
	r.eventually(func() bool { return r.status().OrphanCount == 1 }, "not reported")
	require.Equal(t, replicaName, r.status().Orphans[0].Name)
	r.rounds(2)
	require.Contains(t, r.engine.names(), replicaName+" ready")
}
