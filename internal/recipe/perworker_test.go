package recipe_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

func perWorker() recipe.Settings {
	s := settings()
	s.VolumePerWorker, s.AccessMode, s.Class = true, corev1.ReadWriteOnce, "cloud-disks"
	return s
}

func TestVolumePerWorker(t *testing.T) {
	s := perWorker()
	require.NoError(t, s.Check())
	job := s.Job()
	require.Nil(t, s.Claim(job), "Kubernetes makes the claims, with the pods")
	pod := job.Spec.Template.Spec
	require.Equal(t, corev1.RestartPolicyOnFailure, pod.RestartPolicy, "a worker that fails finds what it wrote")
	template := pod.Volumes[0].Ephemeral.VolumeClaimTemplate
	require.Equal(t, "count", template.Labels["app.kubernetes.io/name"])
	require.Equal(t, "cloud-disks", *template.Spec.StorageClassName)
	require.Equal(t, "1536Mi", template.Spec.Resources.Requests.Storage().String(), "that of one worker")
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, template.Spec.AccessModes)
	require.Equal(t, "/persistent", pod.Containers[0].VolumeMounts[0].MountPath)
	require.False(t, pod.Containers[0].VolumeMounts[0].ReadOnly)

	s.AccessMode = corev1.ReadOnlyMany
	require.ErrorContains(t, s.Check(), "exclude each other")
	s.AccessMode = corev1.ReadWriteOncePod
	require.NoError(t, s.Check())
	s.VolumePerWorker = false
	require.ErrorContains(t, s.Check(), "use it with --volume-per-worker")
}

func TestVolumePerWorkerBesideAnotherJob(t *testing.T) {
	client := fake.NewClientset()
	_, err := recipe.Start(t.Context(), client, perWorker())
	require.NoError(t, err)
	claims, err := client.CoreV1().PersistentVolumeClaims("team").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, claims.Items)
	_, err = recipe.Start(t.Context(), client, perWorker())
	require.NoError(t, err)
	for says, change := range map[string]func(*recipe.Settings){
		"the volume of each worker is cloud-disks 1536Mi [ReadWriteOnce] in the cluster and cloud-disks 2Gi": func(s *recipe.Settings) { s.SizePerWorker = resource.MustParse("2Gi") },
		"in the cluster and other 1536Mi":          func(s *recipe.Settings) { s.Class = "other" },
		"[ReadWriteOnce] in the cluster and  here": func(s *recipe.Settings) { s.VolumePerWorker = false },
	} {
		s := perWorker()
		change(&s)
		_, err = recipe.Start(t.Context(), client, s)
		require.ErrorContains(t, err, says)
	}
}

// The volume of a worker is that of its pod that has succeeded, or else of its newest pod. Collect can
// be repeated after a failure, and creates a pod for each worker that has ended.
func TestCollect(t *testing.T) {
	job := perWorker().Job()
	job.UID = "job-uid"
	pod := func(name, worker string, phase corev1.PodPhase, age time.Duration) corev1.Pod {
		yes := true
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: worker},
			CreationTimestamp: metav1.NewTime(time.Unix(10000, 0).Add(-age)),
			OwnerReferences:   []metav1.OwnerReference{{UID: "job-uid", Controller: &yes}},
		}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: phase}}
	}
	stranger := pod("stranger", "0", corev1.PodSucceeded, 0)
	stranger.OwnerReferences = nil
	pods := []corev1.Pod{
		pod("count-1-b", "1", corev1.PodFailed, time.Minute), pod("count-1-c", "1", corev1.PodSucceeded, time.Hour),
		pod("count-0-a", "0", corev1.PodSucceeded, 0), stranger,
		pod("count-2-d", "2", corev1.PodFailed, time.Hour), pod("count-2-e", "2", corev1.PodRunning, time.Minute),
	}
	volumes, err := recipe.WorkerVolumes(job, pods)
	require.NoError(t, err)
	require.Equal(t, []recipe.WorkerVolume{
		{Worker: 0, Claim: "count-0-a-persistent", Node: "n1", Phase: "Succeeded", Pod: "count-0-a"},
		{Worker: 1, Claim: "count-1-c-persistent", Node: "n1", Phase: "Succeeded", Pod: "count-1-c"},
		{Worker: 2, Claim: "count-2-e-persistent", Node: "n1", Phase: "Running", Pod: "count-2-e"},
	}, volumes)

	client, writes := fake.NewClientset(), 0
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if writes++; writes == 2 {
			return true, nil, errors.New("the process was killed")
		}
		return false, nil, nil
	})
	_, err = recipe.Collect(t.Context(), client, job, volumes, "busybox:1.36")
	require.ErrorContains(t, err, "create pod team/count-collect-1")
	for range 2 {
		made, err := recipe.Collect(t.Context(), client, job, volumes, "busybox:1.36")
		require.NoError(t, err)
		require.Len(t, made, 2)
		one := made[1]
		require.True(t, recipe.Collects("count", 1)(one))
		require.Equal(t, "count-1-c-persistent", one.Spec.Volumes[0].PersistentVolumeClaim.ClaimName)
		require.Equal(t, []corev1.VolumeMount{{Name: "persistent", MountPath: "/persistent", ReadOnly: true}}, one.Spec.Containers[0].VolumeMounts)
		require.EqualValues(t, "job-uid", one.OwnerReferences[0].UID, "it goes with the job")
	}
	volumes[1].Claim = "count-1-z-persistent"
	_, err = recipe.Collect(t.Context(), client, job, volumes, "busybox:1.36")
	require.ErrorContains(t, err, "does not mount this volume")

	_, err = recipe.WorkerVolumes(settings().Job(), pods)
	require.ErrorContains(t, err, "without --volume-per-worker")
}
