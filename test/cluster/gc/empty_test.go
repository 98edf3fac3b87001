//go:build cluster

package gc_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// testEmptyList: the API server has lost its PersistentVolumes. A daemon that may evict everything,
// even orphans, evicts nothing until a person has confirmed it.
func (b *bed) testEmptyList(t *testing.T, strangers map[string]string) {
	s := b.space(t, "empty")
	claims := []string{"a", "b", "c", "forgotten"}
	s.claim(lazy, claims...)
	s.pod("main", claims...)
	s.running("main")
	volumes := s.volumesOf(claims...)
	s.sums("main")
	s.end("main")
	b.away(t, true)
	b.losePersistentVolumes(t)
	b.onNode(t, driver+" volumes forget "+volumes["forgotten"])
	before := b.logicalVolumes(t)
	b.reconfigure(t, reckless...)
	b.away(t, false)

	message := b.condition(t, v1.ConditionReady, metav1.ConditionFalse, "the API server shows no PersistentVolume")
	b.say(t, "not ready: %s", message)
	b.event(t, "default", "Node", node, "EvictionBlocked", "as if it had come back empty")
	b.event(t, "default", "Node", node, "OrphansFound", "kubectl describe nodestorage "+node)
	b.moreRounds(t, 5, 0)
	require.ElementsMatch(t, before, b.logicalVolumes(t), "the API server has said nothing of these volumes")
	b.say(t, "kubectl get nodestorage\n%s", b.kubectl(t, "get", "nodestorage"))
	status := b.storage(t)
	for _, claim := range claims[:3] {
		o := orphanOf(t, status, wide, volumes[claim])
		require.Equal(t, s.name, o.Namespace)
		require.Equal(t, "ready", o.State)
		require.Empty(t, o.Problem)
	}
	for _, group := range []string{wide, small} {
		require.Contains(t, orphanOf(t, status, group, "pvc-riddle").Problem, "much")
		require.EqualValues(t, 4, poolOf(t, status, group).ForeignVolumes, "all but the riddle, which may be ours")
	}
	require.Len(t, status.Orphans, 5)

	// A person forgets the orphans, and only these are removed.
	for _, claim := range claims[:3] {
		b.onNode(t, driver+" volumes forget "+volumes[claim])
	}
	await.Until(t, longest, func() string { return b.unexplained(t, strangers) })
	b.condition(t, v1.ConditionReady, metav1.ConditionTrue, "")
}

func orphanOf(t *testing.T, s v1.NodeStorageStatus, pool, name string) v1.Orphan {
	t.Helper()
	i := slices.IndexFunc(s.Orphans, func(o v1.Orphan) bool { return o.Pool == pool && o.Name == name })
	require.NotEqual(t, -1, i, "%s/%s is not among %v", pool, name, s.Orphans)
	return s.Orphans[i]
}

// away removes the daemon from its node, or restores it.
func (b *bed) away(t *testing.T, away bool) {
	t.Helper()
	nowhere := map[string]any{"flexlvm.test/nowhere": nil}
	if away {
		nowhere["flexlvm.test/nowhere"] = "true"
	}
	b.patchDaemon(t, map[string]any{"nodeSelector": nowhere})
	if !away {
		b.rolledOut(t, "daemonset/"+daemon)
		return
	}
	await.Until(t, longest, func() string {
		pods, err := b.client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + daemon})
		require.NoError(t, err)
		return await.Missing(len(pods.Items) == 0, "%d pods of the daemon are left", len(pods.Items))
	})
}

// losePersistentVolumes deletes all of flexlvm's PersistentVolumes from the API, despite their
// finalizers.
func (b *bed) losePersistentVolumes(t *testing.T) {
	t.Helper()
	list, err := b.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{LabelSelector: pv.LabelNode})
	require.NoError(t, err)
	require.NotEmpty(t, list.Items)
	for _, v := range list.Items {
		b.kubectl(t, "delete", "pv", v.Name, "--wait=false")
		b.kubectl(t, "patch", "pv", v.Name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		b.persistentVolumeGone(t, v.Name)
	}
}
