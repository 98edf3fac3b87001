package recipe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
)

// AnnotationStarting marks a job that Start has created suspended and has not started yet. It tells such a
// job from one that a person has suspended.
const AnnotationStarting = "flexlvm.io/starting"

// Start creates the job, its claim, and then starts the job. The job comes first, so that no claim is ever
// without an owner, and is suspended until the claim is known to be its own: pods would use any claim of that
// name, and overwrite its files. Killed in between, Start leaves a suspended job; called again with the same
// settings, it continues. Otherwise an existing job is not changed, and stays suspended if a person has
// suspended it. If it has other settings, the error lists the differences.
func Start(ctx context.Context, client kubernetes.Interface, s Settings) (*batchv1.Job, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	job, err := s.createJob(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("create job %s/%s: %w", s.Namespace, s.Name, err)
	}
	if claim := s.Claim(job); claim != nil {
		if err := createClaim(ctx, client, job, claim); err != nil {
			return nil, err
		}
	}
	return resume(ctx, client, job)
}

// createJob creates the job, suspended if it has a claim, or returns the existing one.
func (s Settings) createJob(ctx context.Context, client kubernetes.Interface) (*batchv1.Job, error) {
	jobs := client.BatchV1().Jobs(s.Namespace)
	job, err := jobs.Get(ctx, s.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		job = s.Job()
		if claim := s.Claim(job); claim != nil {
			if err := checkAbsent(ctx, client, claim); err != nil { // leave no job behind that cannot start
				return nil, err
			}
			suspend := true
			job.Annotations, job.Spec.Suspend = map[string]string{AnnotationStarting: "true"}, &suspend
		}
		job, err = jobs.Create(ctx, job, metav1.CreateOptions{})
		if err == nil {
			return job, nil
		}
	}
	if apierrors.IsAlreadyExists(err) { // another call has created it meanwhile
		job, err = jobs.Get(ctx, s.Name, metav1.GetOptions{})
	}
	if err != nil {
		return nil, err
	}
	return job, s.sameAs(job)
}

// checkAbsent returns an error if a claim of that name exists before its job does.
func checkAbsent(ctx context.Context, client kubernetes.Interface, want *corev1.PersistentVolumeClaim) error {
	claim, err := client.CoreV1().PersistentVolumeClaims(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get claim %s/%s: %w", want.Namespace, want.Name, err)
	}
	return foreignErr(claim, want)
}

// createClaim creates the claim of a job, or checks the existing one.
func createClaim(ctx context.Context, client kubernetes.Interface, job *batchv1.Job, claim *corev1.PersistentVolumeClaim) error {
	_, err := client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return ownedBy(ctx, client, job, claim)
	}
	if err != nil {
		return fmt.Errorf("create claim %s/%s (the job waits for it; start the job again with the same settings, or delete it): %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// ownedBy returns an error unless the existing claim belongs to this job, and not to an earlier job of
// the same name, whose files the workers would take for their own.
func ownedBy(ctx context.Context, client kubernetes.Interface, job *batchv1.Job, want *corev1.PersistentVolumeClaim) error {
	claim, err := client.CoreV1().PersistentVolumeClaims(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get claim %s/%s: %w", want.Namespace, want.Name, err)
	}
	for _, owner := range claim.OwnerReferences {
		if owner.UID != job.UID {
			continue
		}
		if claim.DeletionTimestamp != nil {
			return fmt.Errorf("claim %s/%s of this job is being deleted; once it is gone, start the job again with the same settings", claim.Namespace, claim.Name)
		}
		return sameClaim(job, claim, want)
	}
	if job.Annotations[AnnotationStarting] == "" {
		return foreignErr(claim, want)
	}
	return fmt.Errorf("%w. Job %s/%s stays suspended; delete it if you do not start it again", foreignErr(claim, want), job.Namespace, job.Name)
}

// foreignErr returns the error for a claim that belongs to something else. It does not advise deleting the claim,
// whose files somebody may need. That of an earlier job is deleted by Kubernetes.
func foreignErr(claim, want *corev1.PersistentVolumeClaim) error {
	advice := "give another --name"
	ofEarlier := func(o metav1.OwnerReference) bool { return o.Kind == "Job" && o.Name == want.OwnerReferences[0].Name }
	if claim.DeletionTimestamp != nil || slices.ContainsFunc(claim.OwnerReferences, ofEarlier) {
		advice = "if its job was deleted, wait until the claim is gone, too, and start the job again with the same settings; otherwise give another --name"
	}
	return fmt.Errorf("claim %s/%s already exists and does not belong to this job, whose workers would overwrite its files: %s", claim.Namespace, claim.Name, advice)
}

// resume starts a job that Start has created suspended, and returns any other job unchanged.
func resume(ctx context.Context, client kubernetes.Interface, job *batchv1.Job) (*batchv1.Job, error) {
	if job.Annotations[AnnotationStarting] == "" {
		return job, nil
	}
	jobs, uid := client.BatchV1().Jobs(job.Namespace), job.UID
	// The job controller writes the status of a new job at the same time.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID != uid {
			return errReplaced
		}
		if now.Annotations[AnnotationStarting] != "" { // not started by another call, and suspended by a person since
			patch, err := startPatch(now.ResourceVersion)
			if err != nil {
				return err
			}
			if now, err = jobs.Patch(ctx, now.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				return err
			}
		}
		job = now
		return nil
	})
	switch {
	case apierrors.IsNotFound(err), errors.Is(err, errReplaced):
		return nil, fmt.Errorf("start job %s/%s: %w", job.Namespace, job.Name, err)
	case err != nil:
		return nil, fmt.Errorf("start job %s/%s (it stays suspended until it is started again with the same settings): %w", job.Namespace, job.Name, err)
	}
	return job, nil
}

var errReplaced = errors.New("it was deleted, and another job of that name created")

// startPatch returns the patch that starts a suspended job, unless the job has changed since.
func startPatch(resourceVersion string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": resourceVersion, "annotations": map[string]any{AnnotationStarting: nil}},
		"spec":     map[string]any{"suspend": false},
	})
}
