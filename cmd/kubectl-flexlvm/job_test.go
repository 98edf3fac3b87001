package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

func settings(name string) recipe.Settings {
	return recipe.Settings{
		Namespace: "team", Name: name, Workers: 2, Image: "busybox:1.36", Command: []string{"true"}, Class: "flexlvm-nfs",
		SizePerWorker: resource.MustParse("1Gi"), AccessMode: corev1.ReadWriteMany, MountPath: "/persistent", KeepSeconds: -1,
	}
}

func TestJobsAreListed(t *testing.T) {
	kube := fake.NewClientset()
	for _, name := range []string{"count", "sort"} {
		_, err := recipe.Start(t.Context(), kube, settings(name))
		require.NoError(t, err)
	}
	done, err := kube.BatchV1().Jobs("team").Get(t.Context(), "sort", metav1.GetOptions{})
	require.NoError(t, err)
	done.Status = batchv1.JobStatus{Succeeded: 2, Failed: 1, Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}}
	done.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	_, err = kube.BatchV1().Jobs("team").Update(t.Context(), done, metav1.UpdateOptions{})
	require.NoError(t, err)
	other := settings("other").Job()
	other.Labels["app.kubernetes.io/name"] = "somebody-elses"
	_, err = kube.BatchV1().Jobs("team").Create(t.Context(), other, metav1.CreateOptions{})
	require.NoError(t, err)

	jobs, err := jobsIn(t.Context(), kube, "team")
	require.NoError(t, err)
	var out bytes.Buffer
	printJobs(&out, jobs, true, now)
	require.Equal(t, `NAMESPACE   NAME    STATE      WORKERS   ACTIVE   DONE   FAILED   CLAIM       AGE
team        count   Running    2         0        0      0        job-count   -
team        sort    Complete   2         0        2      1        job-sort    60m
`, out.String())
	out.Reset()
	printJobs(&out, nil, false, now)
	require.Equal(t, "no jobs\n", out.String())
}

func TestLogsOfWorkers(t *testing.T) {
	pod := func(name, worker string, age time.Duration) runtime.Object {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: name, Labels: map[string]string{batchv1.JobNameLabel: "count"},
				Annotations: map[string]string{batchv1.JobCompletionIndexAnnotation: worker}, CreationTimestamp: metav1.NewTime(now.Add(-age)),
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "worker"}}},
		}
	}
	kube := fake.NewClientset(pod("a", "0", time.Hour), pod("b", "1", time.Hour), pod("c", "1", time.Minute), pod("d", "", 0))
	list, err := kube.CoreV1().Pods("team").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	last := lastPods(list.Items)
	require.Len(t, last, 2)
	require.Equal(t, "c", last[1].Name, "the pod that took the place of the other")

	var out bytes.Buffer
	require.NoError(t, (&logOptions{worker: -1, tail: 10}).show(t.Context(), kube, "team", "count", &printer{out: &out}))
	require.Equal(t, "[0] fake logs\n[1] fake logs\n", out.String())
	out.Reset()
	require.NoError(t, (&logOptions{worker: 1, tail: -1}).show(t.Context(), kube, "team", "count", &printer{out: &out}))
	require.Equal(t, "[1] fake logs\n", out.String())
	require.ErrorContains(t, (&logOptions{worker: 7}).show(t.Context(), kube, "team", "count", &printer{out: &bytes.Buffer{}}), "has no pods of the requested workers")
}

func TestSubmitPrints(t *testing.T) {
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"job", "submit", "--name=count", "--workers=2", "--image=busybox", "--print", "--", "true"})
	require.NoError(t, cmd.Execute())
	require.Contains(t, out.String(), "kind: Job\n")
	require.Contains(t, out.String(), "kind: PersistentVolumeClaim\n")
	require.Contains(t, out.String(), "storage: 2Gi")
	require.NotContains(t, out.String(), "ownerReferences")
	file := filepath.Join(t.TempDir(), "resource.yaml")
	require.NoError(t, os.WriteFile(file, []byte("persistent.volume.per.worker: 4\nkubernetes.storage.access.mode: ReadWriteOnce\n"), 0o600))
	for says, args := range map[string][]string{"storage: 8Gi": nil, "storage: 6Gi": {"--size-per-worker=3Gi"}} {
		cmd := command()
		out.Reset()
		cmd.SetOut(&out)
		cmd.SetArgs(append(append([]string{"job", "submit", "--name=count", "--workers=2", "--image=busybox", "--print", "--config=" + file}, args...), "--", "true"))
		require.NoError(t, cmd.Execute())
		require.Contains(t, out.String(), says)
		require.Contains(t, out.String(), "- ReadWriteOnce\n")
	}
	for says, args := range map[string][]string{
		"give a size such as 10Gi": {"--size-per-worker=much"}, "name": {"--print"}, "read --config": {"--config=" + file + "x"},
	} {
		cmd := command()
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"job", "submit"}, args...))
		require.ErrorContains(t, cmd.Execute(), says)
	}
}

// What is deleted with a job is named before anybody deletes it to run it again.
func TestSubmittedAgain(t *testing.T) {
	kube, suspend := fake.NewClientset(), true
	job, err := recipe.Start(t.Context(), kube, settings("count"))
	require.NoError(t, err)
	require.Equal(t, "job.batch/count started in namespace team", submitted(job))
	job.Spec.Suspend = &suspend
	require.Contains(t, submitted(job), "is suspended, so no worker runs; unless something else resumes it, kubectl patch job count -n team -p '{\"spec\":{\"suspend\":false}}' does")
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	require.Contains(t, submitted(job), "to run it again, first copy the files of its claim job-count that are needed, because the claim is deleted with it, and then delete it")

	own := settings("own")
	own.VolumePerWorker, own.AccessMode = true, corev1.ReadWriteOnce
	job, err = recipe.Start(t.Context(), kube, own)
	require.NoError(t, err)
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue}}
	require.Contains(t, submitted(job), "(`kubectl flexlvm job collect own -n team`), because the claims are deleted with it, and then delete it")
	own.SizePerWorker, own.Name = resource.MustParse("0"), "none"
	job, err = recipe.Start(t.Context(), kube, own)
	require.NoError(t, err)
	job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	require.Contains(t, submitted(job), "has ended (Complete); to run it again, delete it")
}
