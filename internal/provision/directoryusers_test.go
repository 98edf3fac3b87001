package provision

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
)

// A pod uses a claim from the moment that it names it until it has ended for good: on a node that
// waits for the claim, and while it is being deleted.
func TestUsersOfAClaim(t *testing.T) {
	pod := func(name, namespace, claim string, change func(*corev1.Pod)) runtime.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
		change(p)
		return p
	}
	now := metav1.Now()
	client := fake.NewSimpleClientset(
		pod("waits", "team", "data", func(*corev1.Pod) {}),
		pod("on-a-node", "team", "data", func(p *corev1.Pod) { p.Spec.NodeName = "node-1" }),
		pod("going", "team", "data", func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"x/y"} }),
		pod("ended", "team", "data", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod("other", "team", "other", func(*corev1.Pod) {}),
		pod("elsewhere", "another", "data", func(*corev1.Pod) {}),
	)
	users, err := usersNow(client)(t.Context(), "team", "data")
	require.NoError(t, err)
	var names []string
	for _, p := range users {
		names = append(names, p.Name)
	}
	require.ElementsMatch(t, []string{"waits", "on-a-node", "going"}, names)
}
