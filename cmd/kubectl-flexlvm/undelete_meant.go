package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
)

// A finding is what the API says of the volumes that may be meant.
type finding struct {
	wanted  overview.Wanted
	still   []corev1.PersistentVolume
	unknown error // why still is not known
	reports []flexlvmv1.NodeStorage
}

// lookFor reads the PersistentVolumes first and the reports second: a node reports a volume as released before
// its PersistentVolume goes, so each volume is in one of them, whatever happens meanwhile.
func lookFor(ctx context.Context, c client.Client, w overview.Wanted) (f finding, err error) {
	f.wanted = w
	if w.Volume == "" {
		f.still, f.unknown = stillThere(ctx, c, w)
	}
	f.reports, err = storages(ctx, c)
	return f, err
}

// meant returns the released volume that find finds. By the name of its claim none is taken if
// the claim has a PersistentVolume that is still there: its volume is no released one yet, or
// never will be, but it may be the one that the claim had last.
func (f finding) meant(find func([]flexlvmv1.NodeStorage, overview.Wanted) (overview.Candidate, error)) (overview.Candidate, error) {
	found, err := find(f.reports, f.wanted)
	switch {
	case err != nil && f.unknown != nil:
		return overview.Candidate{}, err
	case err != nil:
		return overview.Candidate{}, fmt.Errorf("%w%s", err, overview.Kept(f.still))
	case f.unknown != nil:
		return overview.Candidate{}, fmt.Errorf("see whether claim %s/%s has another volume: %w; --volume %s takes this one without looking", f.wanted.Namespace, f.wanted.Claim, f.unknown, found.Released.Name)
	}
	return found, overview.Sure(found, f.wanted, f.still)
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
