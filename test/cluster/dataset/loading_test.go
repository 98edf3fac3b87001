//go:build cluster

package dataset_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/test/await"
)

// loads waits until that many replicas of a VolumeManager are being loaded, and returns their nodes.
func (s *space) loads(name string, replicas int) (nodes []string) {
	s.t.Helper()
	await.Until(s.t, longest, func() string {
		nodes = nil
		for _, v := range s.get(name).Status.Volumes {
			for _, r := range v.Nodes {
				if r.State == flexlvmv1.ReplicaLoading && r.Node != "" {
					nodes = append(nodes, r.Node)
				}
			}
		}
		return await.Missing(len(nodes) == replicas, "%d load", len(nodes))
	})
	return nodes
}

// job returns the current Job.
func (s *space) job(name string) *batchv1.Job {
	s.t.Helper()
	job := &batchv1.Job{}
	require.NoError(s.t, s.client.Get(s.t.Context(), s.key(name), job))
	return job
}

func (k *kubelets) testDeletedWhileLoading(t *testing.T) {
	s := k.namespace(t, "deleted")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionFalse) })
	s.make("v", with(s3, "replicas: 1", "replicas: 3"))
	s.loads("v", 3)
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testRestartWhileLoading checks that a new controller keeps running loaders, and notices that one of
// them has ended meanwhile.
func (k *kubelets) testRestartWhileLoading(t *testing.T, binary string, kill *func()) {
	s := k.namespace(t, "restart-loading")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionFalse) })
	s.make("v", with(s3, "replicas: 1", "replicas: 2"))
	s.loads("v", 2)
	uids := func() map[string]types.UID {
		out := map[string]types.UID{}
		for _, name := range []string{"v-a-0", "v-a-1"} {
			claim := s.claims()[name]
			out["claim "+name], out["job "+name] = claim.UID, s.job(name).UID
		}
		return out
	}
	before := uids()
	(*kill)()
	s.play(s.name, func(pod *corev1.Pod) *corev1.PodStatus {
		if pod.Labels["flexlvm.io/replica"] == "0" {
			return complete(pod)
		}
		return running(corev1.ConditionFalse)
	})
	await.Until(t, longest, func() string {
		return await.Missing(s.job("v-a-0").Status.Succeeded == 1, "the loader has not ended")
	})
	require.Empty(t, s.labelled("v"), "nobody is there to say that it is complete")
	*kill = k.provisioner(t, binary)
	await.Until(t, longest, func() string {
		return await.Missing(len(s.labelled("v")) == 1, "what was loaded meanwhile is not served")
	})
	s.loads("v", 1)
	s.play(s.name, nil)
	s.status("v", flexlvmv1.StateRunning, "success")
	require.Len(t, s.labelled("v"), 2)
	require.Equal(t, before, uids(), "something was loaded again")
	s.remove(s.get("v"))
	s.nothingLeft()
}

// testLostWhileLoading checks that if a node is permanently lost during a load, another node loads the
// replica, and nothing of the first load is left. The lost node's kubelet reports nothing more.
func (k *kubelets) testLostWhileLoading(t *testing.T) {
	s := k.namespace(t, "lost-loading")
	s.play(s.name, func(*corev1.Pod) *corev1.PodStatus { return running(corev1.ConditionFalse) })
	s.make("v", s3)
	k.losing.Lock()
	defer k.losing.Unlock()
	lost := s.loads("v", 1)[0]
	claim := s.claims()["v-a-0"]
	s.play(s.name, func(pod *corev1.Pod) *corev1.PodStatus {
		if pod.Spec.NodeName == lost {
			return nil
		}
		return complete(pod)
	})
	s.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}})
	await.Until(t, longest, func() string {
		labelled := s.labelled("v")
		return await.Missing(len(labelled) == 1 && labelled[0] != lost, "labelled: %v", labelled)
	})
	s.status("v", flexlvmv1.StateRunning, "success")
	require.NotEqual(t, claim.UID, s.claims()["v-a-0"].UID)
	await.Until(t, longest, func() string {
		err := k.client.Get(t.Context(), client.ObjectKey{Name: claim.Spec.VolumeName}, &corev1.PersistentVolume{})
		return await.Missing(apierrors.IsNotFound(err), "the PersistentVolume of the lost node is left: %v", err)
	})
	pods := &corev1.PodList{}
	require.NoError(t, k.client.List(t.Context(), pods, client.InNamespace(s.name)))
	for _, pod := range pods.Items {
		require.NotEqual(t, lost, pod.Spec.NodeName, "pod %s is left", pod.Name)
	}
	s.remove(s.get("v"))
	s.nothingLeft()
}
