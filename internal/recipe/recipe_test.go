package recipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

func settings() recipe.Settings {
	return recipe.Settings{
		Namespace: "team", Name: "count", Workers: 4, Image: "busybox:1.36", Command: []string{"sh", "-c", "echo $$ $(date) $X"},
		Class: "flexlvm-nfs", SizePerWorker: resource.MustParse("1536Mi"), AccessMode: corev1.ReadWriteMany,
		MountPath: "/persistent", KeepSeconds: 60, ToolsImage: "localhost/flexlvm/flexlvm:v1",
	}
}

func TestJob(t *testing.T) {
	s := settings()
	require.NoError(t, s.Check())
	job := s.Job()
	require.Equal(t, batchv1.IndexedCompletion, *job.Spec.CompletionMode)
	require.EqualValues(t, 4, *job.Spec.Completions)
	require.EqualValues(t, 4, *job.Spec.Parallelism)
	require.EqualValues(t, 60, *job.Spec.TTLSecondsAfterFinished)
	pod := job.Spec.Template.Spec
	worker := pod.Containers[0]
	require.Equal(t, []string{"sh", "-c", "echo $$$$ $$(date) $$X"}, worker.Command, "Kubernetes takes half of them")
	require.Equal(t, []corev1.EnvVar{{Name: "FLEXLVM_JOB_DIR", Value: "/persistent"}, {Name: "FLEXLVM_WORKER_SIZE", Value: "1610612736"}, {Name: "WORKERS", Value: "4"}}, worker.Env)
	require.Equal(t, "/persistent", worker.VolumeMounts[0].MountPath)
	require.False(t, worker.VolumeMounts[0].ReadOnly)
	require.Equal(t, "job-count", pod.Volumes[0].PersistentVolumeClaim.ClaimName)
	require.Equal(t, []string{"/flexlvm-job", "install", "/tools"}, pod.InitContainers[0].Command)
	require.Equal(t, "/tools", pod.InitContainers[0].VolumeMounts[0].MountPath, "/flexlvm is the driver there")
	require.Equal(t, "/flexlvm", worker.VolumeMounts[1].MountPath)

	claim := s.Claim(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "count", UID: "u1"}})
	require.Equal(t, "job-count", claim.Name)
	require.Equal(t, "6Gi", claim.Spec.Resources.Requests.Storage().String(), "the size of a worker times the workers")
	require.Equal(t, "flexlvm-nfs", *claim.Spec.StorageClassName)
	require.Equal(t, []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "count", UID: "u1"}}, claim.OwnerReferences)

	s.SizePerWorker = resource.MustParse("0.5Gi")
	require.NoError(t, s.Check())
	require.Equal(t, "2Gi", s.Claim(job).Spec.Resources.Requests.Storage().String())

	s.AccessMode, s.KeepSeconds, s.ToolsImage, s.Class = corev1.ReadOnlyMany, -1, "", ""
	job = s.Job()
	require.True(t, job.Spec.Template.Spec.Containers[0].VolumeMounts[0].ReadOnly)
	require.Nil(t, job.Spec.TTLSecondsAfterFinished)
	require.Empty(t, job.Spec.Template.Spec.InitContainers)
	require.Nil(t, s.Claim(job).Spec.StorageClassName)
}

func TestJobWithoutStorage(t *testing.T) {
	s := settings()
	s.SizePerWorker, s.AccessMode, s.MountPath = resource.Quantity{}, "", ""
	require.NoError(t, s.Check())
	job := s.Job()
	require.Nil(t, s.Claim(job))
	for _, v := range job.Spec.Template.Spec.Volumes {
		require.Nil(t, v.PersistentVolumeClaim)
	}
	require.Equal(t, []corev1.EnvVar{{Name: "WORKERS", Value: "4"}}, job.Spec.Template.Spec.Containers[0].Env)
	client := fake.NewClientset()
	_, err := recipe.Start(t.Context(), client, s)
	require.NoError(t, err)
	claims, err := client.CoreV1().PersistentVolumeClaims("team").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Empty(t, claims.Items)
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*recipe.Settings){
		"--name":            func(s *recipe.Settings) { s.Name = "Count" },
		"--workers":         func(s *recipe.Settings) { s.Workers = 0 },
		"--image":           func(s *recipe.Settings) { s.Image = "" },
		"--size-per-worker": func(s *recipe.Settings) { s.SizePerWorker = resource.MustParse("-1") },
		"is too large":      func(s *recipe.Settings) { s.SizePerWorker = resource.MustParse("4Ei") },
		"--access-mode":     func(s *recipe.Settings) { s.AccessMode = "ReadWriteOncePod" },
		"--mount-path":      func(s *recipe.Settings) { s.MountPath = "persistent" },
		"--keep-seconds is": func(s *recipe.Settings) { s.KeepSeconds = 1 << 31 },
	} {
		s := settings()
		change(&s)
		require.ErrorContains(t, s.Check(), want)
		_, err := recipe.Start(t.Context(), fake.NewClientset(), s)
		require.ErrorContains(t, err, want)
	}
}

// Start fails if a job of that name has other settings, whether it has ended or not.
func TestStartBesideAnotherJob(t *testing.T) {
	for want, change := range map[string]func(*recipe.Settings){
		"--workers is 4 in the cluster and 5 here":                                         func(s *recipe.Settings) { s.Workers = 5 },
		"--image is busybox:1.36 in the cluster and busybox:1.37 here":                     func(s *recipe.Settings) { s.Image = "busybox:1.37" },
		`the command is ["sh"`:                                                             func(s *recipe.Settings) { s.Command = []string{"true"} },
		"--keep-seconds is 60 in the cluster and none here":                                func(s *recipe.Settings) { s.KeepSeconds = -1 },
		"--mount-path is /persistent in the cluster and /p here":                           func(s *recipe.Settings) { s.MountPath = "/p" },
		"--tools-image is localhost/flexlvm/flexlvm:v1 in the cluster and":                 func(s *recipe.Settings) { s.ToolsImage = "" },
		"--size-per-worker is 1610612736 in the cluster and 1073741824 here":               func(s *recipe.Settings) { s.SizePerWorker = resource.MustParse("1Gi") },
		"ReadOnlyMany) is false in the cluster and true here":                              func(s *recipe.Settings) { s.AccessMode = corev1.ReadOnlyMany },
		"--access-mode is [ReadWriteMany] in the cluster and [ReadWriteOnce] here":         func(s *recipe.Settings) { s.AccessMode = corev1.ReadWriteOnce },
		"--storage-class is flexlvm-nfs in the cluster and other here":                     func(s *recipe.Settings) { s.Class = "other" },
		"--workers is 4 in the cluster and 2 here, --image is busybox:1.36 in the cluster": func(s *recipe.Settings) { s.Workers, s.Image = 2, "x" },
	} {
		t.Run(want, func(t *testing.T) {
			client := fake.NewClientset()
			withUIDs(client)
			job, err := recipe.Start(t.Context(), client, settings())
			require.NoError(t, err)
			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
			_, err = client.BatchV1().Jobs("team").UpdateStatus(t.Context(), job, metav1.UpdateOptions{})
			require.NoError(t, err)
			s := settings()
			change(&s)
			_, err = recipe.Start(t.Context(), client, s)
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "give another --name, or first copy the files of its claim job-count that are needed, because the claim is deleted with it, and then delete the existing job")
			job, err = recipe.Start(t.Context(), client, settings())
			require.NoError(t, err)
			how, ended := recipe.Ended(job)
			require.True(t, ended)
			require.Equal(t, batchv1.JobComplete, how)
		})
	}
}
