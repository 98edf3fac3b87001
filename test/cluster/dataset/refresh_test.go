//go:build cluster

package dataset_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// testRefresh checks that on request each node gets the source's current version. A node without space
// keeps its version, and the status says so until a refresh succeeds.
func (k *kubelets) testRefresh(t *testing.T) {
	s := k.namespace(t, "refresh")
	var next atomic.Value
	next.Store(`{"state":"complete","filesDone":3,"filesTotal":3,"contents":"one"}`)
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus {
		report := next.Load().(string)
		if report == "" {
			return terminated(1, `{"state":"failed","message":"no room: 5.0 GiB more are needed"}`)
		}
		return terminated(0, report)
	})
	s.make("v", with(s3, "replicas: 1", "replicas: 2"))
	got := s.status("v", flexlvmv1.StateRunning, "success")
	require.Equal(t, map[string]int32{"one": 2}, got.Volumes[0].Versions)
	require.Equal(t, "one", got.Summary.Version)
	before := s.claims()

	readers := &corev1.PersistentVolume{}
	require.NoError(t, k.client.Get(t.Context(), s.key(before["v-a"].Spec.VolumeName), readers))
	require.Equal(t, "true", readers.Spec.FlexVolume.Options[volume.OptionVersions])

	refreshed := func(ask, report, missing string, is func(flexlvmv1.VolumeManagerStatus) bool) {
		next.Store(report)
		s.patch("v", `{"metadata":{"annotations":{"flexlvm.io/refresh":"`+ask+`"}}}`)
		await.Until(t, longest, func() string {
			got = s.get("v").Status
			return await.Missing(is(got), "%s: %+v", missing, got.Volumes[0].Nodes)
		})
	}
	refreshed("1", `{"state":"complete","filesDone":4,"filesTotal":4,"contents":"two"}`, "version two is not everywhere", func(got flexlvmv1.VolumeManagerStatus) bool {
		return got.Summary.Version == "two"
	})
	require.Len(t, s.labelled("v"), 2)
	refreshed("2", "", "it does not say that there is no room", func(got flexlvmv1.VolumeManagerStatus) bool {
		c := meta.FindStatusCondition(got.Conditions, flexlvmv1.ConditionRefreshed)
		return c != nil && c.Status == metav1.ConditionFalse && len(got.Volumes[0].Nodes) == 2 && got.Volumes[0].Nodes[0].Message == "its last refresh failed: no room: 5.0 GiB more are needed"
	})
	require.Equal(t, flexlvmv1.StateRunning, got.State)
	require.Equal(t, "two", got.Summary.Version, "what is there stays")
	refreshed("3", `{"state":"complete","filesDone":4,"filesTotal":4,"contents":"three"}`, "version three is not everywhere", func(got flexlvmv1.VolumeManagerStatus) bool {
		c := meta.FindStatusCondition(got.Conditions, flexlvmv1.ConditionRefreshed)
		return got.Summary.Version == "three" && c.Status == metav1.ConditionTrue
	})
	require.Contains(t, k.kubectl(t, "get", "vm", "v", "-n", s.name, "-o", "wide"), "three")
	for name, claim := range before {
		require.Equal(t, claim.UID, s.claims()[name].UID, "%s was loaded anew", name)
	}
	s.told("v", "RefreshComplete", "claim v-a-0 on ")
	s.told("v", "RefreshFailed", "claim v-a-0 on ")
	s.remove(s.get("v"))
	s.nothingLeft()
}
