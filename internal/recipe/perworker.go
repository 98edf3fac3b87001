package recipe

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ownClaim returns the volume source of a worker that has its own volume: Kubernetes creates the claim
// with the pod and deletes it with the pod. The class need not serve several nodes.
func (s Settings) ownClaim() corev1.VolumeSource {
	claim := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: s.labels()}}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{s.AccessMode}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: s.SizePerWorker}
	if s.Class != "" {
		claim.Spec.StorageClassName = &s.Class
	}
	return corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: claim}}
}

// A WorkerVolume is the volume of a worker that has its own.
type WorkerVolume struct {
	Worker int    `json:"worker"`
	Claim  string `json:"claim"`
	Node   string `json:"node,omitempty"`
	Phase  string `json:"phase"` // of the worker's pod
	Pod    string `json:"pod"`
}

// WorkerVolumes returns the volumes of a job's workers, in the order of their numbers. If a worker has
// had several pods, the succeeded one counts, or else the newest.
func WorkerVolumes(job *batchv1.Job, pods []corev1.Pod) ([]WorkerVolume, error) {
	if ownVolume(job) == nil {
		return nil, fmt.Errorf("the workers of job %s/%s have no volumes of their own: it was started without --volume-per-worker", job.Namespace, job.Name)
	}
	best := map[int]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		worker, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation])
		if err != nil || !metav1.IsControlledBy(pod, job) || pod.DeletionTimestamp != nil {
			continue
		}
		if was := best[worker]; was == nil || was.Status.Phase != corev1.PodSucceeded && (pod.Status.Phase == corev1.PodSucceeded || was.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			best[worker] = pod
		}
	}
	out := make([]WorkerVolume, 0, len(best))
	for worker, pod := range best {
		// Kubernetes names the claims of generic ephemeral volumes so, as documented.
		out = append(out, WorkerVolume{Worker: worker, Claim: pod.Name + "-" + volumeName, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase), Pod: pod.Name})
	}
	slices.SortFunc(out, func(a, b WorkerVolume) int { return a.Worker - b.Worker })
	return out, nil
}

// ownVolume returns the mount of each worker's own volume; nil if workers have none.
func ownVolume(job *batchv1.Job) *corev1.VolumeMount {
	pod := &job.Spec.Template.Spec
	own := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == volumeName && v.Ephemeral != nil })
	if !own || len(pod.Containers) == 0 {
		return nil
	}
	i := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volumeName })
	if i < 0 {
		return nil
	}
	return &pod.Containers[0].VolumeMounts[i]
}

// OwnDir returns where workers with their own volumes mount them, as do the pods of Collect. It is
// untrusted: the job's author, who may be anybody, has chosen it.
func OwnDir(job *batchv1.Job) string { return ownVolume(job).MountPath }

// CollectorName returns the name of the pod in which the volume of a worker can be read once the worker
// has ended.
func CollectorName(job string, worker int) string { return fmt.Sprintf("%s-collect-%d", job, worker) }

// Collects returns a function that reports whether a pod is the collector of a worker.
func Collects(job string, worker int) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Name == CollectorName(job, worker) }
}

// collector returns the collector of a worker's volume. It is deleted with the job, like the volume.
func collector(job *batchv1.Job, v WorkerVolume, image string) *corev1.Pod {
	mount := *ownVolume(job)
	mount.ReadOnly = true
	labels := map[string]string{"app.kubernetes.io/name": job.Name, "app.kubernetes.io/component": "job-collector"}
	grace := int64(1) // 0 would delete the pod from the API server before its volume is unmounted
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: CollectorName(job.Name, v.Worker), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}},
		},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "collector", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"sh", "-c", "sleep 1000000 & wait"}, VolumeMounts: []corev1.VolumeMount{mount},
			}},
			Volumes: []corev1.Volume{{Name: volumeName, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: v.Claim},
			}}},
		},
	}
}

// Collect creates a pod for each worker that has ended, in which its volume can be read, with an image
// that has sh, and tar for kubectl cp. After a kill in between, it can be called again.
func Collect(ctx context.Context, client kubernetes.Interface, job *batchv1.Job, volumes []WorkerVolume, image string) (made []*corev1.Pod, err error) {
	for _, v := range volumes {
		if v.Phase != string(corev1.PodSucceeded) && v.Phase != string(corev1.PodFailed) {
			continue
		}
		want := collector(job, v, image)
		pod, err := client.CoreV1().Pods(job.Namespace).Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			pod, err = client.CoreV1().Pods(job.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
			if err == nil && !reads(pod, job, v) {
				err = fmt.Errorf("a pod of that name already exists, but does not mount this volume or does not belong to this job; delete it")
			}
		}
		if err != nil {
			return made, fmt.Errorf("create pod %s/%s: %w", want.Namespace, want.Name, err)
		}
		made = append(made, pod)
	}
	return made, nil
}

// reads reports whether a pod is the collector of a worker's volume.
func reads(pod *corev1.Pod, job *batchv1.Job, v WorkerVolume) bool {
	owned := slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == job.UID })
	return owned && pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Spec.Volumes, func(one corev1.Volume) bool {
		return one.PersistentVolumeClaim != nil && one.PersistentVolumeClaim.ClaimName == v.Claim
	})
}

// ownTemplate returns the class, the size and the mode of each worker's own volume, for comparisons;
// empty if workers have none.
func ownTemplate(pod corev1.PodSpec) string {
	for _, v := range pod.Volumes {
		if v.Name == volumeName && v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			spec := v.Ephemeral.VolumeClaimTemplate.Spec
			return strings.Join([]string{fmt.Sprint(value(spec.StorageClassName)), spec.Resources.Requests.Storage().String(), fmt.Sprint(spec.AccessModes)}, " ")
		}
	}
	return ""
}
