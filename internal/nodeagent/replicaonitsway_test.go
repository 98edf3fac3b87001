package nodeagent_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/replica"
)

// A pod may have been scheduled while the label was there, and be bound to the node only after a slow provisioner has
// created another of its volumes.
func TestReplicaOfAPodOnItsWay(t *testing.T) {
	chosen := func(node, bound string) func(*fakeAPI) {
		return func(a *fakeAPI) {
			a.claims["slow"] = &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "slow", Annotations: map[string]string{"volume.kubernetes.io/selected-node": node}},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: bound},
			}
		}
	}
	for name, tt := range map[string]struct {
		api  func(*fakeAPI)
		goes bool
	}{
		"its claim is made here":    {api: chosen("node-1", "")},
		"the scheduler names us":    {api: func(a *fakeAPI) { a.waiting[0].Status.NominatedNodeName = "node-1" }},
		"it is placed elsewhere":    {api: chosen("node-2", ""), goes: true},
		"it waits with its volumes": {api: chosen("node-1", "pvc-slow"), goes: true},
		"it waits for a place":      {api: func(*fakeAPI) {}, goes: true},
		"it reads something else":   {api: func(a *fakeAPI) { chosen("node-1", "")(a); a.waiting[0].Namespace = "another" }, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplicaRig(t)
			r.start()
			r.untilUnlabelled()
			r.pod("vm-images", corev1.PodPending, false)
			r.api.with(func() {
				r.api.waiting = []corev1.Pod{*r.api.pods["pod"]}
				r.api.waiting[0].Spec.NodeName = ""
				r.api.waiting[0].Spec.Volumes = append(r.api.waiting[0].Spec.Volumes, corev1.Volume{Name: "slow", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "slow"},
				}})
				delete(r.api.pods, "pod")
				tt.api(r.api)
			})
			r.clock.pass(11 * time.Second)
			if tt.goes {
				r.eventually(r.evictable, "nobody comes")
				return
			}
			r.eventually(func() bool { return !r.asked() }, "not withdrawn")
			require.Empty(t, r.saidOf(replica.AnnotationEvictable))
		})
	}
}

// Thousands of pods may wait for a dataset, most of them with the same claims, each of which is read once.
func TestReplicaThatManyPodsWaitFor(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	r.pod("vm-images", corev1.PodPending, false)
	r.api.with(func() {
		pod := *r.api.pods["pod"]
		pod.Spec.NodeName = ""
		for i := range 50 {
			pod.Name = fmt.Sprintf("pod-%d", i)
			r.api.waiting = append(r.api.waiting, pod)
		}
		delete(r.api.pods, "pod")
	})
	others := r.api.requests("get persistentvolumeclaims") // GETs for the claim that waits for room
	r.clock.pass(11 * time.Second)
	r.eventually(r.evictable, "nobody comes")
	require.Less(t, r.api.requests("get persistentvolumeclaims")-others, 10)
}

// A pod may be bound to the node between the list of the waiting pods and the list of the node's pods.
func TestReplicaOfAPodThatArrives(t *testing.T) {
	t.Parallel()
	r := newReplicaRig(t)
	r.start()
	r.untilUnlabelled()
	r.pod("vm-images", corev1.PodPending, false)
	r.api.with(func() {
		arriving := r.api.pods["pod"]
		delete(r.api.pods, "pod")
		r.api.fault = func(_ http.ResponseWriter, verb, resource string) bool {
			if verb == "list" && resource == "waiting pods" {
				r.api.with(func() { r.api.pods["pod"] = arriving }) // and it no longer waits
			}
			return false
		}
	})
	r.clock.pass(11 * time.Second)
	r.eventually(func() bool { return !r.asked() }, "not withdrawn")
	require.Empty(t, r.saidOf(replica.AnnotationEvictable))
}
