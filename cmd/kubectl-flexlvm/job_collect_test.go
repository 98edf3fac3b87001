package main

import (
	"bytes"
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
	require.Equal(t, "WORKER   CLAIM                  NODE   POD IS\n0        count-0-x-persistent   n1     Succeeded\n1        count-1-x-persistent   n1     Running\n", out.String())
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
