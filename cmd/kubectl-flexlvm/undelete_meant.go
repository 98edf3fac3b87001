package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/overview"
)

// meant returns the released volume that find finds. By the name of its claim none is taken if
// the claim has a PersistentVolume that is still there: its volume is no released one yet, or
// never will be, but it may be the one that the claim had last.
func meant(ctx context.Context, c client.Client, w overview.Wanted, find func() (overview.Candidate, error)) (overview.Candidate, error) {
	found, err := find()
	if w.Volume != "" {
		return found, err
	}
	still, unknown := stillThere(ctx, c, w)
	switch {
	case err != nil && unknown != nil:
		return overview.Candidate{}, err
	case err != nil:
		return overview.Candidate{}, fmt.Errorf("%w%s", err, overview.Kept(still))
	case unknown != nil:
		return overview.Candidate{}, fmt.Errorf("see whether claim %s/%s has another volume: %w; --volume %s takes this one without looking", w.Namespace, w.Claim, unknown, found.Released.Name)
	}
	return found, overview.Sure(found, w, still)
}

// stillThere reads the PersistentVolumes of the claim that is meant, which the claim does not
// use. Those of other drivers are among them: a claim may have moved from one to another.
func stillThere(ctx context.Context, c client.Client, w overview.Wanted) ([]corev1.PersistentVolume, error) {
	var all []corev1.PersistentVolume
	err := list(ctx, c, func(l *corev1.PersistentVolumeList) {
		all = append(all, slices.DeleteFunc(l.Items, func(object corev1.PersistentVolume) bool { return !overview.OfClaim(&object, w) })...)
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	claim := &corev1.PersistentVolumeClaim{}
	switch err := c.Get(ctx, client.ObjectKey{Namespace: w.Namespace, Name: w.Claim}, claim); {
	case apierrors.IsNotFound(err):
		claim = nil
	case err != nil:
		return nil, advised(fmt.Errorf("look for claim %s/%s: %w", w.Namespace, w.Claim, err))
	}
	return overview.StillThere(all, claim, w), nil
}
