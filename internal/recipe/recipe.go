// Package recipe creates the objects of a distributed job from a few settings: an Indexed Job, and one
// claim that its workers share, or one for each of them.
package recipe

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

// Settings describe the job to run.
type Settings struct {
	Namespace string
	Name      string // name of the job; the claim's is "job-" and this
	Workers   int
	Image     string
	Command   []string // of each worker
	// Class is the StorageClass of the claim; empty means the cluster's default.
	Class string
	// SizePerWorker times the number of workers is the size of the claim. 0 is a job without persistent
	// storage.
	SizePerWorker resource.Quantity
	AccessMode    corev1.PersistentVolumeAccessMode
	// VolumePerWorker: each worker has its own volume of SizePerWorker, instead of one that all share.
	VolumePerWorker bool
	MountPath       string // mount path of the volume in every worker
	// KeepSeconds is how long job and claim are kept after the job has finished; if negative, until the
	// job is deleted.
	KeepSeconds int
	// ToolsImage contains flexlvm-job, which every worker then finds in ToolsDir; may be
	// empty.
	ToolsImage string
}

// ToolsDir is where workers find flexlvm-job.
const ToolsDir = "/flexlvm"

const (
	volumeName  = "persistent"
	toolsName   = "flexlvm-tools"
	toolsTarget = "/tools" // mount path in the container that copies the tools
	// longestName is the longest name of a job: the names of its pods add an index and five characters,
	// and the claim's name adds a prefix.
	longestName = 50
	maxWorkers  = 100000 // the most that an Indexed Job may run in parallel
)

// Check validates the settings. The error names the wrong flags and says what to do.
func (s Settings) Check() error {
	if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 || len(s.Name) > longestName {
		return fmt.Errorf("--name %q cannot be the name of a job: use up to %d lower-case letters, digits and hyphens, with a letter or digit at either end", s.Name, longestName)
	}
	switch {
	case s.Workers < 1 || s.Workers > maxWorkers:
		return fmt.Errorf("--workers is %d; give 1 to %d", s.Workers, maxWorkers)
	case s.Image == "":
		return fmt.Errorf("--image is empty; give the image that the workers run")
	case s.KeepSeconds > math.MaxInt32:
		return fmt.Errorf("--keep-seconds is %d; give up to %d, or less than 0 to keep the job until it is deleted", s.KeepSeconds, math.MaxInt32)
	case s.SizePerWorker.Sign() < 0:
		return fmt.Errorf("--size-per-worker %s is less than 0; 0 is a job without persistent storage", s.SizePerWorker.String())
	}
	if !s.persistent() {
		return nil
	}
	return s.checkVolume()
}

func (s Settings) checkVolume() error {
	switch s.AccessMode {
	case corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadOnlyMany:
	case corev1.ReadWriteOncePod:
		if !s.VolumePerWorker {
			return fmt.Errorf("--access-mode %s lets only one pod use the volume; use it with --volume-per-worker", s.AccessMode)
		}
	default:
		return fmt.Errorf("--access-mode %q is not known; give one of ReadWriteMany, ReadWriteOnce, ReadOnlyMany, ReadWriteOncePod", s.AccessMode)
	}
	if s.VolumePerWorker && s.AccessMode == corev1.ReadOnlyMany {
		return fmt.Errorf("--access-mode %s and --volume-per-worker exclude each other, because nothing could ever be written to such a volume", s.AccessMode)
	}
	if _, err := jobvolume.New(s.MountPath, 0); err != nil || s.MountPath == "/" || s.MountPath == ToolsDir {
		return fmt.Errorf("--mount-path %q cannot be where the volume is mounted; give an absolute path, neither / nor %s", s.MountPath, ToolsDir)
	}
	if s.SizePerWorker.CmpInt64(math.MaxInt64/int64(s.Workers)) > 0 {
		return fmt.Errorf("--size-per-worker %s times %d workers is too large; give a smaller size", s.SizePerWorker.String(), s.Workers)
	}
	return nil
}

func (s Settings) persistent() bool { return s.SizePerWorker.Sign() > 0 }

// size returns the size of the claim: the size per worker times the workers.
func (s Settings) size() resource.Quantity {
	return *resource.NewQuantity(s.SizePerWorker.Value()*int64(s.Workers), resource.BinarySI)
}

// ClaimName returns the name of a job's claim.
func ClaimName(job string) string { return "job-" + job }

// Claim returns the claim of an existing job. The job owns it, so it is deleted with the job; the class
// determines what happens to the files. It is nil if the job has no persistent storage, or a volume for
// each worker.
func (s Settings) Claim(job *batchv1.Job) *corev1.PersistentVolumeClaim {
	if !s.persistent() || s.VolumePerWorker {
		return nil
	}
	claim := &corev1.PersistentVolumeClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: ClaimName(s.Name), Labels: s.labels(),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{s.AccessMode},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: s.size()}},
		},
	}
	if s.Class != "" {
		claim.Spec.StorageClassName = &s.Class
	}
	return claim
}

// Component selects the jobs of this package, among other objects with a job's labels.
const Component = "app.kubernetes.io/component=job"

func (s Settings) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": s.Name, "app.kubernetes.io/component": "job"}
}

// Job returns the Indexed Job: each worker completes once, in any order and on any node,
// and finds its number in JOB_COMPLETION_INDEX. Its pods would use any claim of that
// name, so Start creates it suspended.
func (s Settings) Job() *batchv1.Job {
	workers, mode := int32(s.Workers), batchv1.IndexedCompletion
	job := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, Labels: s.labels()},
		Spec: batchv1.JobSpec{
			CompletionMode: &mode, Completions: &workers, Parallelism: &workers,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: s.labels()},
				Spec:       s.pod(),
			},
		},
	}
	if s.KeepSeconds >= 0 {
		keep := int32(s.KeepSeconds)
		job.Spec.TTLSecondsAfterFinished = &keep
	}
	return job
}

func (s Settings) pod() corev1.PodSpec {
	worker := corev1.Container{Name: "worker", Image: s.Image, ImagePullPolicy: corev1.PullIfNotPresent, Command: literal(s.Command)}
	pod := corev1.PodSpec{
		// A failed worker is replaced by a new pod, which finds the files of the failed one. The failed
		// pod stays for people to inspect.
		RestartPolicy: corev1.RestartPolicyNever,
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
			LabelSelector: &metav1.LabelSelector{MatchLabels: s.labels()},
		}},
	}
	if s.persistent() {
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ClaimName(s.Name)}}
		if s.VolumePerWorker {
			source = s.ownClaim()
			// The volume is deleted with the pod, so a failed worker is restarted in its pod.
			pod.RestartPolicy = corev1.RestartPolicyOnFailure
		}
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: volumeName, VolumeSource: source})
		worker.Env = append(worker.Env, corev1.EnvVar{Name: jobvolume.EnvDir, Value: s.MountPath},
			corev1.EnvVar{Name: jobvolume.EnvSize, Value: strconv.FormatInt(s.SizePerWorker.Value(), 10)})
		worker.VolumeMounts = append(worker.VolumeMounts, corev1.VolumeMount{
			Name: volumeName, MountPath: s.MountPath, ReadOnly: s.AccessMode == corev1.ReadOnlyMany,
		})
	}
	if s.ToolsImage != "" {
		pod.Volumes = append(pod.Volumes, corev1.Volume{Name: toolsName, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		// In the tools' image, /flexlvm is the driver.
		mount := corev1.VolumeMount{Name: toolsName, MountPath: toolsTarget}
		pod.InitContainers = []corev1.Container{{
			Name: toolsName, Image: s.ToolsImage, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"/flexlvm-job", "install", toolsTarget}, VolumeMounts: []corev1.VolumeMount{mount},
		}}
		mount.MountPath, mount.ReadOnly = ToolsDir, true
		worker.VolumeMounts = append(worker.VolumeMounts, mount)
	}
	worker.Env = append(worker.Env, corev1.EnvVar{Name: "WORKERS", Value: strconv.Itoa(s.Workers)})
	pod.Containers = []corev1.Container{worker}
	return pod
}

// literal keeps Kubernetes from expanding $(NAME) and $$ in a command, which are meant for the shell.
func literal(command []string) []string {
	out := make([]string, len(command))
	for i, word := range command {
		out[i] = strings.ReplaceAll(word, "$", "$$")
	}
	return out
}
