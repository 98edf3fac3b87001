//go:build cluster

package provisioner_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

// gib is what a volume of 1 GiB uses of its pool.
var gib = volume.XFSDeviceSize(volume.GiB, 0)

// within returns the size of the largest linear volume in that much space.
func within(room volume.Bytes) volume.Bytes {
	return volume.Largest([]volume.Bytes{room}, volume.Spec{Layout: volume.Linear}, volume.DefaultExtent)
}

// rooms makes the nodes report space for that many such volumes during the test, and longNode none.
func (b *bed) rooms(t *testing.T, sim1, sim2 int) {
	t.Helper()
	t.Cleanup(func() { b.reportRoomy(t) })
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": volume.Bytes(sim1) * gib})
	b.report(t, "sim-2", map[string]volume.Bytes{"flexlvm": volume.Bytes(sim2) * gib})
	b.report(t, longNode, nil)
}

// sized creates a claim of class flexlvm.
func (s *space) sized(name string, size volume.Bytes) {
	s.claim(name, func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources = requests(fmt.Sprint(int64(size))) })
}

// podWith creates a pod that uses all claims and prefers a node.
func (s *space) podWith(name, rather string, claims ...string) {
	s.t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox:1.36"}}},
	}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	if rather != "" {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
				Weight: 100,
				Preference: corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{
					{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{rather}},
				}},
			}},
		}}
	}
	_, err := s.client.CoreV1().Pods(s.name).Create(s.t.Context(), pod, metav1.CreateOptions{})
	require.NoError(s.t, err)
}

// nodeOf waits until a pod is scheduled and returns its node.
func (s *space) nodeOf(pod string) (node string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		p, err := s.client.CoreV1().Pods(s.name).Get(s.t.Context(), pod, metav1.GetOptions{})
		require.NoError(s.t, err)
		node = p.Spec.NodeName
		return await.Missing(node != "", "pod %s has no node: %v; events %q", pod, p.Status.Conditions, s.events(s.name, "Pod", pod))
	})
	return node
}

// offered waits until the capacity of a class on a node has the expected value.
func (b *bed) offered(t *testing.T, class, node string, most volume.Bytes) {
	t.Helper()
	await.Until(t, longest, func() string {
		list, err := b.client.StorageV1().CSIStorageCapacities(system).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, c := range list.Items {
			if c.StorageClassName == class && c.NodeTopology.MatchLabels[corev1.LabelHostname] == hostname(node) {
				return await.Missing(c.Capacity.Value() == int64(most), "class %s on %s offers %s, not %d", class, node, c.Capacity, most)
			}
		}
		return await.Missing(most < 0, "class %s on %s offers nothing", class, node)
	})
}

// testFilter: a pod is scheduled where its claim fits, even if it prefers another node, and never to a
// node without the volume group.
func (b *bed) testFilter(t *testing.T) {
	s := b.namespace(t, "filter")
	b.rooms(t, 1, 9)
	b.offered(t, "flexlvm", "sim-1", within(gib))
	b.offered(t, "flexlvm", longNode, -1)
	for i, rather := range []string{"sim-1", longNode, "sim-1"} {
		name := fmt.Sprintf("c-%d", i)
		s.sized(name, 2*volume.GiB)
		s.podWith(name, rather, name)
		require.Equal(t, "sim-2", s.nodeOf(name))
	}
	// Exactly as large as the published capacity.
	s.sized("all", within(gib))
	s.podWith("all", "sim-1", "all")
	require.Equal(t, "sim-1", s.nodeOf("all"))
	b.offered(t, "flexlvm", "sim-1", 0)
}

// testScore: of the nodes where a claim fits, the one with more free space is preferred.
func (b *bed) testScore(t *testing.T) {
	s := b.namespace(t, "score")
	b.rooms(t, 8, 100)
	b.offered(t, "flexlvm", "sim-2", within(100*gib))
	b.offered(t, "flexlvm", "sim-1", within(8*gib))
	// The scheduler observes the capacities later, and does not revise a choice.
	s.sized("probe", 9*gib)
	s.pod("probe", "sim-1")
	s.event(s.name, "Pod", "probe", "FailedScheduling", "did not have enough free storage")
	b.kubectl(t, "delete", "pod,pvc", "probe", "-n", s.name, "--force", "--grace-period=0")
	for i := range 4 {
		name := fmt.Sprintf("c-%d", i)
		s.sized(name, 4*volume.GiB)
		s.podWith(name, "", name)
		require.Equal(t, "sim-2", s.nodeOf(name))
	}
}

// testRoomForTen: a hundred claims compete for space for ten. Ten get volumes. Ninety are told how much
// is missing, and follow as space is freed.
func (b *bed) testRoomForTen(t *testing.T) {
	s := b.namespace(t, "ten")
	b.rooms(t, 4, 6)
	b.offered(t, "flexlvm", "sim-1", within(4*gib))
	b.offered(t, "flexlvm", "sim-2", within(6*gib))
	const n = 100
	var all sync.WaitGroup
	for w := range 10 {
		all.Go(func() {
			for i := w; i < n; i += 10 {
				name := fmt.Sprintf("c-%d", i)
				s.sized(name, volume.GiB)
				s.podWith(name, "", name)
			}
		})
	}
	all.Wait()
	s.promised(10)
	began := time.Now()
	told := func(claim string) bool {
		for _, e := range s.events(s.name, "PersistentVolumeClaim", claim) {
			if strings.Contains(e, fmt.Sprintf("%d bytes (1 GiB) are asked for, and the most that any of 2", int64(volume.GiB))) ||
				strings.Contains(e, `volume group "flexlvm" can still promise`) {
				return true
			}
		}
		return false
	}
	served := map[string]bool{}
	for _, v := range s.volumes(t.Context()) {
		served[v.Spec.ClaimRef.Name] = true
	}
	require.Len(t, served, 10)
	for i := range n {
		name := fmt.Sprintf("c-%d", i)
		await.Until(t, longest, func() string {
			return await.Missing(served[name] || told(name), "claim %s is not told why it waits: %q", name, s.events(s.name, "PersistentVolumeClaim", name))
		})
	}
	t.Logf("90 claims were told in numbers %.1f s later", time.Since(began).Seconds())
	s.promised(10)

	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": 7 * gib})
	s.promised(13)
	b.report(t, "sim-2", map[string]volume.Bytes{"flexlvm": 10 * gib})
	s.promised(17)
}

// promised checks that there are exactly n volumes, and that it stays so.
func (s *space) promised(n int) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		return await.Missing(len(s.volumes(s.t.Context())) >= n, "%d volumes, not %d", len(s.volumes(s.t.Context())), n)
	})
	s.caughtUp(s.t)
	require.Len(s.t, s.volumes(s.t.Context()), n)
}

// testWholePods: claims of one pod that fit individually but not together end on a node where they all
// fit, or nowhere, and in that case block no other pod.
func (b *bed) testWholePods(t *testing.T) {
	s := b.namespace(t, "whole")
	b.rooms(t, 5, 7)
	b.offered(t, "flexlvm", "sim-1", within(5*gib))
	b.offered(t, "flexlvm", "sim-2", within(7*gib))
	s.sized("data", 3*volume.GiB)
	s.sized("log", 3*volume.GiB)
	s.podWith("db", "sim-1", "data", "log")
	require.Equal(t, "sim-2", s.nodeOf("db"), "it would rather go to sim-1, where only one of them fits")
	require.Len(t, s.volumes(t.Context()), 2)

	s.sized("much-1", 3*volume.GiB)
	s.sized("much-2", 3*volume.GiB)
	s.podWith("large", "", "much-1", "much-2")
	await.Until(t, longest, func() string {
		events := append(s.events(s.name, "PersistentVolumeClaim", "much-1"), s.events(s.name, "PersistentVolumeClaim", "much-2")...)
		for _, e := range events {
			if strings.Contains(e, `node "sim-1" has no room for the claims`) && strings.Contains(e, `volume group "flexlvm" can still promise`) {
				return ""
			}
		}
		return fmt.Sprintf("nobody is told: %q", events)
	})
	require.Len(t, s.volumes(t.Context()), 2, "nothing of a pod that does not fit")
	s.sized("small", volume.GiB)
	s.podWith("small", "sim-1", "small")
	require.Equal(t, "sim-1", s.nodeOf("small"), "others are not kept out")

	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": 9 * gib})
	require.Equal(t, "sim-1", s.nodeOf("large"), "once they fit")
}

// testBoundAtOnce: without a scheduler, the provisioner chooses the node, by the same arithmetic.
func (b *bed) testBoundAtOnce(t *testing.T) {
	s := b.namespace(t, "at-once")
	b.rooms(t, 4, 2)
	// Once these capacities are published, the provisioner has observed the reports and does not choose
	// by older ones.
	b.offered(t, "flexlvm", "sim-1", within(4*gib))
	b.offered(t, "flexlvm", "sim-2", within(2*gib))
	b.offered(t, "flexlvm", longNode, -1)
	s.class("at-once", func(c *storagev1.StorageClass) { c.VolumeBindingMode = ptr(storagev1.VolumeBindingImmediate) })
	claim := func(name string) {
		s.claim(name, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName, c.Spec.Resources = ptr("at-once"), requests("2Gi")
		})
	}
	claim("first")
	require.Equal(t, []string{hostname("sim-1")}, s.volumeOf("first").Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
	s.podWith("first", "", "first")
	require.Equal(t, "sim-1", s.nodeOf("first"))
	claim("second")
	s.volumeOf("second")
	claim("third")
	s.volumeOf("third")
	claim("fourth")
	s.event(s.name, "PersistentVolumeClaim", "fourth", "has room for it: 2147483648 bytes (2 GiB) are asked for", "any of 2 nodes")
	b.report(t, "sim-2", map[string]volume.Bytes{"flexlvm": 4 * gib})
	s.volumeOf("fourth")
}

// testCapacities: there is one capacity for each class and node. It follows both, and is deleted with
// them.
func (b *bed) testCapacities(t *testing.T) {
	s := b.namespace(t, "capacities")
	b.rooms(t, 3, 5)
	for _, class := range []string{"flexlvm", datasetClass} { // the shipped classes
		b.offered(t, class, "sim-1", within(3*gib))
		b.offered(t, class, "sim-2", within(5*gib))
		b.offered(t, class, longNode, -1)
	}
	writes := func() (n int) {
		_, err := fmt.Sscan(b.metric(t, 8081, "flexlvm_provisioner_capacity_writes_total"), &n)
		require.NoError(t, err)
		return n
	}
	before := writes()
	await.Until(t, longest, func() string { // wait until the changes of other tests are written
		last := before
		time.Sleep(5 * time.Second)
		before = writes()
		return await.Missing(before == last, "%d are written, and %d were five seconds ago", before, last)
	})
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": 3 * gib})

	s.class("second", nil)
	classes := []string{"flexlvm", datasetClass, "second"} // the two shipped ones, and one more
	for _, class := range classes {
		b.offered(t, class, "sim-1", within(3*gib))
		b.offered(t, class, "sim-2", within(5*gib))
	}
	// A write is counted after it is visible.
	counted := func(n int, of string) {
		await.Until(t, longest, func() string { return await.Missing(writes() >= n, "%d are counted, want %d", writes(), n) })
		require.Equal(t, n, writes(), of)
	}
	counted(before+2, "one write for each node, and none for a report that says nothing new")
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": 2 * gib})
	for _, class := range classes {
		b.offered(t, class, "sim-1", within(2*gib))
	}
	counted(before+2+len(classes), "one write for each class")

	// A capacity is deleted by hand, and then a class.
	list, err := b.client.StorageV1().CSIStorageCapacities(system).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, 2*len(classes))
	require.NoError(t, b.client.StorageV1().CSIStorageCapacities(system).Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}))
	await.Until(t, longest, func() string {
		again, err := b.client.StorageV1().CSIStorageCapacities(system).Get(t.Context(), list.Items[0].Name, metav1.GetOptions{})
		return await.Missing(err == nil && again.UID != list.Items[0].UID, "it is not made again: %v", err)
	})
	require.NoError(t, b.client.StorageV1().StorageClasses().Delete(t.Context(), "second", metav1.DeleteOptions{}))
	b.offered(t, "second", "sim-1", -1)
	b.offered(t, "second", "sim-2", -1)
}

// testFirstChoiceFilled: while no provisioner runs, a node fills up, and the scheduler chooses it
// because it does not know that.
func (b *bed) testFirstChoiceFilled(t *testing.T) {
	s := b.namespace(t, "filled")
	b.rooms(t, 5, 5)
	p := b.run(t, 8087)
	b.ready(t, 8087)
	b.offered(t, "flexlvm", "sim-1", within(5*gib))
	b.offered(t, "flexlvm", "sim-2", within(5*gib))
	p.kill()
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": gib})
	s.sized("data", 2*volume.GiB)
	s.podWith("data", "sim-1", "data")
	await.Until(t, longest, func() string {
		c, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), "data", metav1.GetOptions{})
		require.NoError(t, err)
		return await.Missing(c.Annotations["volume.kubernetes.io/selected-node"] == "sim-1", "the scheduler has not chosen sim-1: %v", c.Annotations)
	})
	b.run(t, 8087)
	require.Equal(t, "sim-2", s.nodeOf("data"))
	s.event(s.name, "PersistentVolumeClaim", "data", `node "sim-1" has no room for it`, "the scheduler is asked for another node")
}

// testNoRoomAndKilled: leaders are killed meanwhile, and no space is promised twice.
func (b *bed) testNoRoomAndKilled(t *testing.T) {
	s := b.namespace(t, "no-room")
	b.rooms(t, 7, 8)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	processes := make(chan *process, 100)
	stop := b.keep(t, 8088, func(p *process) { processes <- p })
	defer stop()
	b.ready(t, 8088)
	leads(t, b, 8088)
	for i := range 40 {
		name := fmt.Sprintf("c-%d", i)
		s.sized(name, volume.GiB)
		s.podWith(name, "", name)
	}
	for i := range 4 {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(100+i*150) * time.Millisecond):
		}
		(<-processes).kill()
		leads(t, b, 8088)
	}
	s.promised(15)
}
