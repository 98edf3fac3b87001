package recipe

import (
	"fmt"
	"path"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

// differences lists how an existing object differs from the wanted one, by the flags that set it.
type differences []string

func (d *differences) add(flag string, is, wanted any) {
	if there, here := fmt.Sprint(is), fmt.Sprint(wanted); there != here {
		*d = append(*d, fmt.Sprintf("%s is %s in the cluster and %s here", flag, there, here))
	}
}

// sameAs returns an error unless the existing job is the one that the settings describe. Fields that
// Kubernetes and others have added to it do not count.
func (s Settings) sameAs(job *batchv1.Job) error {
	var d differences
	want := s.Job()
	if job.DeletionTimestamp != nil {
		return fmt.Errorf("the existing job of that name is being deleted; start the job again when it is gone")
	}
	d.add("--workers", value(job.Spec.Completions), value(want.Spec.Completions))
	d.add("--keep-seconds", value(job.Spec.TTLSecondsAfterFinished), value(want.Spec.TTLSecondsAfterFinished))
	is, wanted := container(job.Spec.Template.Spec.Containers), container(want.Spec.Template.Spec.Containers)
	d.add("--image", is.Image, wanted.Image)
	d.add("the command", command(is.Command), command(wanted.Command))
	d.add("--mount-path", mountPath(is), mountPath(wanted))
	d.add("a read-only volume (--access-mode ReadOnlyMany)", mountOf(is).ReadOnly, mountOf(wanted).ReadOnly)
	d.add("--size-per-worker", workerSize(is), workerSize(wanted))
	d.add("the volume of each worker", ownTemplate(job.Spec.Template.Spec), ownTemplate(want.Spec.Template.Spec))
	d.add("--tools-image", container(job.Spec.Template.Spec.InitContainers).Image, container(want.Spec.Template.Spec.InitContainers).Image)
	return d.err("job", job)
}

// BeforeDeletion returns what to do before a job is deleted, because its volumes are deleted with it; empty if it has
// none, or if its start was interrupted, so that its claim may not exist.
func BeforeDeletion(job *batchv1.Job) string {
	if job.Annotations[AnnotationStarting] != "" {
		return ""
	}
	if ownVolume(job) != nil {
		return fmt.Sprintf("copy the files of its workers that are needed (`kubectl flexlvm job collect %s -n %s`), because the claims are deleted with it", job.Name, job.Namespace)
	}
	for _, v := range job.Spec.Template.Spec.Volumes {
		if c := v.PersistentVolumeClaim; c != nil && v.Name == volumeName {
			return fmt.Sprintf("copy the files of its claim %s that are needed, because the claim is deleted with it", c.ClaimName)
		}
	}
	return ""
}

// sameClaim is sameAs for the claim of a job.
func sameClaim(job *batchv1.Job, is, want *corev1.PersistentVolumeClaim) error {
	var d differences
	// Compared by value: the server writes 1e9 as 1G.
	if is, wanted := is.Spec.Resources.Requests.Storage(), want.Spec.Resources.Requests.Storage(); is.Cmp(*wanted) != 0 {
		d.add("--size-per-worker times the workers", is, wanted)
	}
	d.add("--access-mode", is.Spec.AccessModes, want.Spec.AccessModes)
	if want.Spec.StorageClassName != nil {
		d.add("--storage-class", value(is.Spec.StorageClassName), value(want.Spec.StorageClassName))
	}
	return d.err("claim", job)
}

func (d differences) err(kind string, job *batchv1.Job) error {
	if len(d) == 0 {
		return nil
	}
	deletion := "delete the existing job"
	if first := BeforeDeletion(job); first != "" {
		deletion = fmt.Sprintf("first %s, and then %s", first, deletion)
	}
	return fmt.Errorf("a %s of that name already exists with other settings: %s; give another --name, or %s", kind, strings.Join(d, ", "), deletion)
}

// Ended reports whether a job has ended, and how.
func Ended(job *batchv1.Job) (how batchv1.JobConditionType, is bool) {
	i := slices.IndexFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
	})
	if i < 0 {
		return "", false
	}
	return job.Status.Conditions[i].Type, true
}

func value[T any](p *T) any {
	if p == nil {
		return "none"
	}
	return *p
}

func container(of []corev1.Container) corev1.Container {
	if len(of) == 0 {
		return corev1.Container{}
	}
	return of[0]
}

func command(words []string) string { return fmt.Sprintf("%q", words) }

// mountOf returns the mount of the volume in a worker; the zero value without a volume.
func mountOf(c corev1.Container) corev1.VolumeMount {
	for _, m := range c.VolumeMounts {
		if m.Name == volumeName {
			return m
		}
	}
	return corev1.VolumeMount{}
}

// mountPath returns where the volume is mounted in a worker; none without a volume.
func mountPath(c corev1.Container) string {
	if m := mountOf(c); m.MountPath != "" {
		return path.Clean(m.MountPath)
	}
	return "none"
}

// workerSize returns the size of a worker's share of the volume in bytes; none without a volume.
func workerSize(c corev1.Container) string {
	for _, e := range c.Env {
		if e.Name == jobvolume.EnvSize {
			return e.Value
		}
	}
	return "none"
}
