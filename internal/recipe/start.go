package recipe

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Start creates the job and then its claim, so that no claim is ever without an owner. Killed in
// between, it leaves a job whose pods wait; called again with the same settings, it creates what is
// missing. An existing job is not changed; if it has other settings, the error lists the differences.
func Start(ctx context.Context, client kubernetes.Interface, s Settings) (*batchv1.Job, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	job, err := client.BatchV1().Jobs(s.Namespace).Create(ctx, s.Job(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if job, err = client.BatchV1().Jobs(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{}); err == nil {
			err = s.sameAs(job)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create job %s/%s: %w", s.Namespace, s.Name, err)
	}
	claim := s.Claim(job)
	if claim == nil {
		return job, nil
	}
	_, err = client.CoreV1().PersistentVolumeClaims(s.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := ownedBy(ctx, client, job, claim); err != nil {
			return nil, err
		}
		return job, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create claim %s/%s (the pods of the job wait for it; start the job again with the same settings, or delete it): %w", s.Namespace, claim.Name, err)
	}
	return job, nil
}

// ownedBy returns an error unless the existing claim belongs to this job, and not to an earlier job of
// the same name, whose files the workers would take for their own.
func ownedBy(ctx context.Context, client kubernetes.Interface, job *batchv1.Job, want *corev1.PersistentVolumeClaim) error {
	claim, err := client.CoreV1().PersistentVolumeClaims(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get claim %s/%s: %w", want.Namespace, want.Name, err)
	}
	for _, owner := range claim.OwnerReferences {
		if owner.UID == job.UID && claim.DeletionTimestamp == nil {
			return sameClaim(claim, want)
		}
	}
	return fmt.Errorf("claim %s/%s already exists and does not belong to this job: wait until it is gone, or delete it, and start the job again with the same settings; until then its pods wait", want.Namespace, want.Name)
}
