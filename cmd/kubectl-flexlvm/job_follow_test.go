package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// Workers that have not started are waited for, those that take the place of others are gone on with, and each container
// is printed once, until the job has ended, or the worker that is asked for has.
func TestFollow(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	for _, tt := range []struct {
		worker int
		prints map[string]int
		takes  time.Duration
	}{
		{-1, map[string]int{"[0] fake logs\n": 3, "[1] fake logs\n": 1}, 7 * time.Second},
		{1, map[string]int{"[1] fake logs\n": 1}, 6 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			kube, job := fake.NewClientset(), settings("count").Job()
			_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
			require.NoError(t, err)
			pod := func(name, worker string, phase corev1.PodPhase, restarts int32, state corev1.ContainerState) {
				p := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{batchv1.JobNameLabel: "count"},
						Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: worker}, CreationTimestamp: metav1.Now(),
					},
					Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "worker"}}},
					Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "worker", RestartCount: restarts, State: state}}},
				}
				_ = kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team", name)
				require.NoError(t, kube.Tracker().Add(p))
			}
			go func() {
				time.Sleep(time.Second + time.Second/2)
				pod("a", "0", corev1.PodPending, 0, waiting)
				time.Sleep(time.Second)
				pod("a", "0", corev1.PodRunning, 0, running)
				pod("b", "1", corev1.PodPending, 0, corev1.ContainerState{})
				time.Sleep(time.Second)
				pod("a", "0", corev1.PodRunning, 1, running)
				time.Sleep(time.Second)
				pod("c", "0", corev1.PodRunning, 0, running) // it takes the place of a
				time.Sleep(time.Second)
				pod("b", "1", corev1.PodSucceeded, 0, done)
				time.Sleep(time.Second)
				ended := job.DeepCopy()
				ended.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
				_, err := kube.BatchV1().Jobs("team").Update(t.Context(), ended, metav1.UpdateOptions{})
				require.NoError(t, err)
			}()
			var out bytes.Buffer
			began := time.Now()
			require.NoError(t, (&logOptions{worker: tt.worker, follow: true, tail: -1}).show(t.Context(), kube, "team", "count", &out))
			require.Equal(t, tt.takes, time.Since(began))
			lines := 0
			for line, n := range tt.prints {
				require.Equal(t, n, strings.Count(out.String(), line), "%s in %s", line, out.String())
				lines += n
			}
			require.Equal(t, lines, strings.Count(out.String(), "\n"))
			time.Sleep(10 * time.Second)
		})
	}
}

func TestFollowOfNothing(t *testing.T) {
	kube, job := fake.NewClientset(), settings("count").Job()
	show := func(worker int) error {
		return (&logOptions{worker: worker, follow: true, tail: -1}).show(t.Context(), kube, "team", "count", &bytes.Buffer{})
	}
	require.ErrorContains(t, show(-1), "look at job team/count")
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	_, err := kube.BatchV1().Jobs("team").Create(t.Context(), job, metav1.CreateOptions{})
	require.NoError(t, err)
	require.ErrorContains(t, show(2), "--worker 2: job team/count has 2, the first of which is 0")
	require.ErrorContains(t, show(-1), "job team/count has no such pods")
}

// A bar that is drawn over and over is one line, of any length.
func TestLongLines(t *testing.T) {
	var out bytes.Buffer
	p := printer{out: &out}
	long := strings.Repeat("50 %\r", 1<<20)
	require.NoError(t, p.lines(strings.NewReader("begin\r\n"+long+"\nend"), 3))
	text := out.String()
	require.True(t, strings.HasPrefix(text, "[3] begin\n[3] 50 %\r"))
	require.True(t, strings.HasSuffix(text, "\n[3] end\n"))
	require.Equal(t, "begin"+strings.TrimSuffix(long, "\r")+"end", strings.TrimSuffix(strings.ReplaceAll(strings.ReplaceAll(text, "[3] ", ""), "\n", ""), "\r"))
}
