package dataset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// offersTo reports whether the pods of another namespace may read the volume.
func (s *Observed) offersTo(namespace string) bool {
	return s.Wanted && slices.Contains(s.Config.SharedWith, namespace)
}

// addWithdrawn adds the claims by which namespaces read the volume although it is no longer offered to them,
// read from the API server, and the PersistentVolumes of claims that are gone. Each namespace's own
// VolumeManager deletes them, too, but its author can prevent that.
func (r *reconciler) addWithdrawn(ctx context.Context, observed *Observed) error {
	for _, v := range observed.shares {
		key := client.ObjectKey{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name}
		if observed.offersTo(key.Namespace) {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := r.live.Get(ctx, key, claim)
		switch {
		case apierrors.IsNotFound(err), err == nil && claim.Spec.VolumeName != v.Name:
			observed.Withdrawn = append(observed.Withdrawn, v)
		case err != nil:
			return fmt.Errorf("look for the claim by which namespace %s reads dataset %s: %w", key.Namespace, observed.hash(), err)
		default:
			observed.Withdrawn = append(observed.Withdrawn, claim)
		}
	}
	return nil
}

// withdraw deletes the claims and PersistentVolumes of namespaces to which the volume is no longer offered.
// Kubernetes keeps a claim while pods use it; its PersistentVolume is deleted after it.
func (p *planner) withdraw() {
	for _, object := range p.Withdrawn {
		p.requeueAfter(whileLoading)
		if !isDeleting(object) {
			p.do(Action{Verb: Delete, Object: object})
		}
	}
}
