//go:build cluster

package dataset_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
)

// TestDatasets runs its parts on one control plane.
func TestDatasets(t *testing.T) {
	b := start(t)
	t.Run("validation", b.testValidation)
	k := &kubelets{bed: b, scripts: map[string]script{}, put: map[string]bool{}}
	for _, node := range nodes {
		b.simulateNode(t, node)
	}
	go k.run(t.Context())
	binary := b.buildProvisioner(t)
	kill := b.provisioner(t, binary)
	t.Cleanup(func() {
		kill()
		if t.Failed() {
			t.Log(tail(b.dir + "/provisioner.log"))
		}
	})
	t.Run("at once", k.testAtOnce)
	t.Run("restart", func(t *testing.T) { k.testRestart(t, binary, &kill) })
	t.Run("restart while loading", func(t *testing.T) { k.testRestartWhileLoading(t, binary, &kill) })
	b.simulateNode(t, "sim-7") // one more, because two nodes are lost for good
	t.Run("lost nodes", func(t *testing.T) {
		for name, run := range map[string]func(*testing.T){"while loading": k.testLostWhileLoading, "with replicas": k.testLostNode} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t)
			})
		}
	})
	t.Run("no label is left", b.noLabelLeft)
	t.Run("nothing was forbidden", func(t *testing.T) {
		log := tail(b.dir + "/provisioner.log")
		require.NotContains(t, log, "orbidden")
	})
}

// testReplicas checks that replicas are on distinct nodes, that consumers find them, and that a release
// removes them all.
func (k *kubelets) testReplicas(t *testing.T) {
	s := k.namespace(t, "replicas")
	s.make("v", with(s3, "replicas: 1", "replicas: 2"))
	// Pods may be created before the data is there.
	await.Until(t, longest, func() string {
		_, there := s.claims()["v-a"]
		return await.Missing(there, "no claim for consumers")
	})
	s.consumer("v-a")
	got := s.status("v", flexlvmv1.StateRunning, "success")
	require.Equal(t, "successfully deployed all sub-resources", got.Message)
	v := got.Volumes[0]
	require.EqualValues(t, 2, v.ReadyReplicas)
	require.Equal(t, "v-a", v.VolumeSource.PersistentVolumeClaim.ClaimName)
	require.Equal(t, &flexlvmv1.Progress{Percent: 100, Files: 6, FilesTotal: 6, Bytes: 6 << 20, BytesTotal: 6 << 20}, v.Progress)
	require.NotEqual(t, v.Nodes[0].Node, v.Nodes[1].Node)
	labelled := s.labelled("v")
	require.ElementsMatch(t, []string{v.Nodes[0].Node, v.Nodes[1].Node}, labelled)
	require.Contains(t, labelled, s.nodeOf("consumer"))
	require.Contains(t, k.kubectl(t, "get", "vm", "-n", s.name), "2/2")

	claim := s.claims()["v-a-0"]
	volume := &corev1.PersistentVolume{}
	require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: claim.Spec.VolumeName}, volume))
	require.Equal(t, replica.Complete, volume.Annotations[replica.AnnotationComplete])
	readers := &corev1.PersistentVolume{}
	require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: s.claims()["v-a"].Spec.VolumeName}, readers))
	require.Equal(t, volume.Spec.FlexVolume.Options["volume"], readers.Spec.FlexVolume.Options["volume"])
	require.Equal(t, volume.Spec.FlexVolume.Options["volumeGroup"], readers.Spec.FlexVolume.Options["volumeGroup"])
	require.Equal(t, volume.Spec.FlexVolume.Options["layout"], readers.Spec.FlexVolume.Options["layout"])
	require.Equal(t, volume.Spec.FlexVolume.Options["clusterUID"], readers.Spec.FlexVolume.Options["clusterUID"])

	// A release while a pod reads removes the label, but keeps the data until the pod has ended.
	s.patch("v", `{"spec":{"state":"Completed"}}`)
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 0, "still labelled") })
	s.status("v", flexlvmv1.StateRunning, "as soon as no pod uses claim v-a")
	require.Contains(t, s.claims(), "v-a-0")
	s.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "consumer"}})
	done := s.status("v", flexlvmv1.StateCompleted, "released")
	require.Equal(t, "released all sub-resources", done.Message)
	require.Empty(t, s.claims())
	// Back to Running.
	s.patch("v", `{"spec":{"state":"Running"}}`)
	s.status("v", flexlvmv1.StateRunning, "success")
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testSources loads several sources in one VolumeManager, each with its own entry in the status, and
// one of the sources in another VolumeManager, too.
func (k *kubelets) testSources(t *testing.T) {
	s := k.namespace(t, "sources")
	aeon := `{id: cache, replicas: 1, sourceType: Aeon, accessMode: ReadWriteOnce, capacity: 1Gi, labels: {k: v}}`
	s.make("v", s3, nfs, pfs, with(s3, "id: a", "id: d", "S3,", "S3-Dev,"), aeon)
	s.make("w", s3)
	got := s.status("v", flexlvmv1.StateRunning, "success")
	claims := map[string]string{}
	for _, v := range got.Volumes {
		require.Equal(t, "success", v.Message, v.ID)
		claims[v.ID] = v.VolumeSource.PersistentVolumeClaim.ClaimName
	}
	require.Equal(t, map[string]string{"a": "v-a", "share": "v-share", "p": "v-p", "d": "v-d-0", "cache": "v-cache-0"}, claims)
	s.status("w", flexlvmv1.StateRunning, "success")
	require.NotEqual(t, s.get("v").Status.Volumes[0].NodeAffinity, s.get("w").Status.Volumes[0].NodeAffinity)

	share := &corev1.PersistentVolume{}
	require.NoError(t, k.client.Get(t.Context(), client.ObjectKey{Name: s.claims()["v-share"].Spec.VolumeName}, share))
	require.Equal(t, "10.0.0.1", share.Spec.NFS.Server)
	require.Equal(t, "v-share", share.Spec.ClaimRef.Name)
	// A volume that is removed from the spec is released. The others stay, and so do volumes that
	// consumers write to, until their user deletes the claims.
	s.make("v", nfs)
	left := func(want ...string) {
		await.Until(t, longest, func() string {
			var got []string
			for name := range s.claims() {
				if strings.HasPrefix(name, "v-") {
					got = append(got, name)
				}
			}
			slices.Sort(got)
			return await.Missing(slices.Equal(got, want), "left: %v", got)
		})
	}
	left("v-cache-0", "v-d-0", "v-share")
	await.Until(t, longest, func() string {
		status := s.get("v").Status
		return await.Missing(len(status.Volumes) == 3 && strings.Contains(status.Volumes[1].Message, "is no longer in the spec"), "%+v", status.Volumes)
	})
	k.kubectl(t, "delete", "pvc", "v-cache-0", "v-d-0", "-n", s.name, "--timeout=8m")
	left("v-share")
	s.remove(s.get("w"))
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testFailures checks that the status has the loader's message for a failed load, that nothing of the
// load is left, and that the retry annotation starts it again.
func (k *kubelets) testFailures(t *testing.T) {
	s := k.namespace(t, "failures")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus {
		return terminated(1, `{"state":"failed","message":"access to bucket b is denied; look at the keys in Secret s"}`)
	})
	s.make("v", s3)
	got := s.status("v", flexlvmv1.StateFailed, "access to bucket b is denied; look at the keys in Secret s")
	require.Equal(t, "failed to deploy all the sub-resources", got.Message)
	await.Until(t, longest, func() string {
		_, there := s.claims()["v-a-0"]
		return await.Missing(!there, "the partial replica is still there")
	})
	require.Empty(t, s.labelled("v"))
	s.play(s.name, nil)
	s.patch("v", `{"metadata":{"annotations":{"flexlvm.io/retry":"1"}}}`)
	s.status("v", flexlvmv1.StateRunning, "success")

	// Values that cannot be parsed are reported, and the VolumeManager does not become Running.
	s.make("w", with(s3, "{aws", "{timeoutForDataDownload: soon, aws"))
	s.status("w", flexlvmv1.StateFailed, "error while parsing timeout for data download: ")
	s.make("w", with(s3, "{aws", "{storageClass: none, aws", "id: a", "id: b"))
	s.status("w", flexlvmv1.StateFailed, `StorageClass "none" does not exist`)
	// A load that refused some keys is a failure.
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus {
		return terminated(3, `{"state":"complete","refused":1,"message":"key a/../b was refused"}`)
	})
	s.make("x", s3)
	s.status("x", flexlvmv1.StateFailed, "key a/../b was refused")
	// A loader that was killed is started again, and meanwhile the status says why.
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return terminated(137, "") })
	s.make("k", s3)
	s.status("k", flexlvmv1.StatePending, "its loader is retried; the last time: the loader ended without a message")
	s.play(s.name, nil)
	s.status("k", flexlvmv1.StateRunning, "success")
	for _, name := range []string{"k", "v", "w", "x"} {
		s.remove(s.get(name))
	}
	s.nothingLeft()
}

func (k *kubelets) testTooFewNodes(t *testing.T) {
	s := k.namespace(t, "nodes")
	only := `nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: sim, operator: In, values: [sim-1]}]}]}}`
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+only))
	s.status("v", flexlvmv1.StateFailed, "replicas [2] greater than number of nodes [1]")
	// One replica's loader, whichever is scheduled later, stays pending, because a cluster autoscaler
	// adds nodes only for pending pods.
	await.Until(t, longest, func() string {
		replicas := s.get("v").Status.Volumes[0].Nodes
		waits := slices.ContainsFunc(replicas, func(r flexlvmv1.ReplicaStatus) bool {
			return strings.Contains(r.Message, "its loader cannot be scheduled: 0/")
		})
		return await.Missing(waits, "the replicas: %+v", replicas)
	})
	// An edit of the affinity fixes it, and another edit moves a replica.
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+with(only, "[sim-1]", "[sim-1, sim-2]")))
	s.status("v", flexlvmv1.StateRunning, "success")
	require.ElementsMatch(t, []string{"sim-1", "sim-2"}, s.labelled("v"))
	s.make("v", with(s3, "replicas: 1", "replicas: 2, "+with(only, "[sim-1]", "[sim-3, sim-2]")))
	await.Until(t, longest, func() string {
		labelled := s.labelled("v")
		return await.Missing(len(labelled) == 2 && slices.Contains(labelled, longNode), "labelled: %v", labelled)
	})
	s.remove(s.get("v"))
	s.nothingLeft()
}

func (k *kubelets) testEdited(t *testing.T) {
	s := k.namespace(t, "edited")
	s.make("v", s3)
	s.status("v", flexlvmv1.StateRunning, "success")
	s.make("v", with(s3, "replicas: 1", "replicas: 3"))
	s.status("v", flexlvmv1.StateRunning, "success")
	require.Len(t, s.labelled("v"), 3)
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionTrue) })
	s.make("v", with(s3, "5Gi", "6Gi"))
	await.Until(t, longest, func() string {
		claim := s.claims()["v-a-0"]
		return await.Missing(claim.Spec.Resources.Requests.Storage().String() == "6Gi" && len(s.labelled("v")) == 1 && len(s.claims()) == 2,
			"claims %d, labelled %v, asks for %s", len(s.claims()), s.labelled("v"), claim.Spec.Resources.Requests.Storage())
	})
	// A Job mounts the volume so that kubelet can grow it. It counts its pod before it is deleted: otherwise the Job
	// controller may wait for that pod when it sees the next Job of this name (forgottenjobs.go).
	await.Until(t, longest, func() string {
		job := &batchv1.Job{}
		err := k.client.Get(t.Context(), s.key("v-a-0"), job)
		return await.Missing(err == nil && job.Labels["flexlvm.io/role"] == "visit" && job.Status.Active == 1, "no visit: %v, %+v", err, job.Status)
	})
	s.play(s.name, nil)
	// A deleted Job and a deleted claim are created again.
	s.remove(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "v-a-0"}})
	claim := s.claims()["v-a-0"]
	s.remove(&claim)
	await.Until(t, longest, func() string {
		fresh, there := s.claims()["v-a-0"]
		return await.Missing(there && fresh.UID != claim.UID && fresh.Annotations[replica.AnnotationComplete] != "", "it does not heal")
	})
	readers := s.claims()["v-a"]
	s.remove(&readers)
	await.Until(t, longest, func() string {
		fresh := s.claims()["v-a"]
		return await.Missing(fresh.UID != readers.UID && fresh.Status.Phase == corev1.ClaimBound, "the consumers' claim does not heal")
	})
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testEviction takes the daemon's part: on a request to evict, the label is removed before the data,
// and the replica is loaded again.
func (k *kubelets) testEviction(t *testing.T) {
	s := k.namespace(t, "eviction")
	s.make("v", with(s3, "{aws", `{evictionPolicy: LRU, aws`))
	s.status("v", flexlvmv1.StateRunning, "success")
	claim := s.claims()["v-a-0"]
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: claim.Spec.VolumeName}}
	annotate := func(key, value string) {
		require.NoError(t, k.client.Patch(t.Context(), volume, client.RawPatch("application/merge-patch+json",
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))))
	}
	annotate(replica.AnnotationEvict, "2026-11-21T16:00:00Z")
	await.Until(t, longest, func() string {
		require.NoError(t, k.client.Get(t.Context(), client.ObjectKeyFromObject(volume), volume))
		told := volume.Annotations[replica.AnnotationUnlabelled] != ""
		if told {
			require.Empty(t, s.labelled("v"), "a pod could still be sent there")
		}
		return await.Missing(told, "the daemon is not told")
	})
	require.Contains(t, s.claims(), "v-a-0", "it is the daemon's turn")
	annotate(replica.AnnotationEvictable, "2026-11-21T16:00:10Z")
	await.Until(t, longest, func() string {
		fresh, there := s.claims()["v-a-0"]
		return await.Missing(there && fresh.UID != claim.UID, "it was not evicted")
	})
	await.Until(t, longest, func() string { return await.Missing(len(s.labelled("v")) == 1, "it does not heal") })
	s.status("v", flexlvmv1.StateRunning, "success")
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testUpload checks that consumers' writes are uploaded before the volume is released.
func (k *kubelets) testUpload(t *testing.T) {
	s := k.namespace(t, "upload")
	s.make("v", with(s3, "S3,", "S3-Dev,", "{aws", `{outputURL: "s3://out/", aws`))
	s.status("v", flexlvmv1.StateRunning, "success")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return terminated(1, `{"message":"bucket out is not there"}`) })
	s.patch("v", `{"spec":{"state":"Completed"}}`)
	s.status("v", flexlvmv1.StateFailed, "so it is kept: bucket out is not there")
	require.Contains(t, s.claims(), "v-a-0")
	s.play(s.name, nil)
	s.patch("v", `{"metadata":{"annotations":{"flexlvm.io/retry":"1"}}}`)
	s.status("v", flexlvmv1.StateCompleted, "released")
	require.Empty(t, s.claims())
	s.remove(s.get("v"))
	s.nothingLeft()
}

func (k *kubelets) testLongNames(t *testing.T) {
	s := k.namespace(t, strings.Repeat("n", 63))
	name := strings.Repeat("v", 63) + "." + strings.Repeat("w", 63)
	s.make(name, with(s3, "id: a", "id: "+strings.Repeat("i", 63), "replicas: 1", "replicas: 2"))
	s.status(name, flexlvmv1.StateRunning, "success")
	s.remove(s.get(name))
	s.nothingLeft()
}

// testStrangers checks that an existing object of somebody else with a name that is needed is not
// changed.
func (k *kubelets) testStrangers(t *testing.T) {
	s := k.namespace(t, "strangers")
	none := ""
	stranger := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "v-a"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			Resources: s.claimSize("1Gi"),
		},
	}
	require.NoError(t, k.client.Create(t.Context(), stranger))
	s.make("v", s3)
	s.status("v", flexlvmv1.StateFailed, `PersistentVolumeClaim "v-a" already exists and does not belong to this volume`)
	require.Equal(t, stranger.UID, s.claims()["v-a"].UID)
	require.Equal(t, corev1.ClaimPending, s.claims()["v-a"].Status.Phase)
	s.remove(s.get("v"))
	await.Until(t, longest, func() string {
		err := k.client.Get(t.Context(), s.key("v"), &flexlvmv1.VolumeManager{})
		return await.Missing(apierrors.IsNotFound(err), "it does not go: %v", err)
	})
	s.remove(stranger)
	s.nothingLeft()
}

// testRestart checks that a new controller loads nothing again.
func (k *kubelets) testRestart(t *testing.T, binary string, kill *func()) {
	s := k.namespace(t, "restart")
	s.make("v", s3)
	s.status("v", flexlvmv1.StateRunning, "success")
	claim, job := s.claims()["v-a-0"], &batchv1.Job{}
	require.NoError(t, k.client.Get(t.Context(), s.key("v-a-0"), job))
	(*kill)()
	// Meanwhile the Job is deleted, the label is removed, and a second replica is requested.
	s.remove(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "v-a-0"}})
	for _, node := range s.labelled("v") {
		k.kubectl(t, "label", "node", node, replica.NodeLabel(claim.Labels[replica.LabelDataset])+"-")
	}
	s.make("v", with(s3, "replicas: 1", "replicas: 2"))
	*kill = k.provisioner(t, binary)
	s.status("v", flexlvmv1.StateRunning, "success")
	require.Len(t, s.labelled("v"), 2)
	require.Equal(t, claim.UID, s.claims()["v-a-0"].UID, "it was loaded again")
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testLostNode checks that a replica whose node is permanently gone is loaded on another node.
func (k *kubelets) testLostNode(t *testing.T) {
	s := k.namespace(t, "lost")
	s.make("v", with(s3, "replicas: 1", "replicas: 2"))
	s.status("v", flexlvmv1.StateRunning, "success")
	k.losing.Lock()
	defer k.losing.Unlock()
	await.Until(t, longest, func() string { // the other test may have lost one of its nodes meanwhile
		return await.Missing(len(s.labelled("v")) == 2, "not two nodes have it")
	})
	lost := s.labelled("v")[0]
	s.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}})
	await.Until(t, longest, func() string {
		labelled := s.labelled("v")
		return await.Missing(len(labelled) == 2 && !slices.Contains(labelled, lost), "labelled: %v", labelled)
	})
	s.remove(s.get("v"))
	s.nothingLeft()
}
