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
	"github.com/flexlvm/flexlvm/internal/pv"
)

// candidates is what the API reports about the volumes that the user may mean.
type candidates struct {
	wanted  overview.Wanted
	still   []corev1.PersistentVolume
	unknown error // the error with which still could not be read
	reports []flexlvmv1.NodeStorage
}

// readCandidates reads the PersistentVolumes before the reports: a node reports a volume as released before its
// PersistentVolume is deleted, so each volume is in at least one of them, whatever changes in between.
func readCandidates(ctx context.Context, c client.Client, w overview.Wanted) (f candidates, err error) {
	f.wanted = w
	if w.Volume == "" {
		f.still, f.unknown = stillThere(ctx, c, w)
	}
	f.reports, err = nodeStorages(ctx, c)
	return f, err
}

// pick returns the released volume that find selects. A claim's name selects none if a PersistentVolume of the
// claim still exists: its volume is not released, or not yet, but it may be the one that the claim had last.
func (f candidates) pick(find func([]flexlvmv1.NodeStorage, overview.Wanted) (overview.Candidate, error)) (overview.Candidate, error) {
	found, err := find(f.reports, f.wanted)
	switch {
	case err != nil && f.unknown != nil:
		return overview.Candidate{}, err
	case err != nil:
		return overview.Candidate{}, fmt.Errorf("%w%s", err, overview.Kept(f.still))
	case f.unknown != nil:
		return overview.Candidate{}, fmt.Errorf("check whether claim %s/%s has another volume: %w; --volume %s selects this volume without that check", f.wanted.Namespace, f.wanted.Claim, f.unknown, found.Released.Name)
	}
	return found, overview.CheckUnambiguous(found, f.wanted, f.still)
}

// nodeOf returns the name of a PersistentVolume's node. A name that is too long for the node label is in the reports.
func (f candidates) nodeOf(object *corev1.PersistentVolume) string {
	label := object.Labels[pv.LabelNode]
	for i := range f.reports {
		if name := f.reports[i].Name; pv.NodeLabelValue(name) == label {
			return name
		}
	}
	return label
}

// stillThere returns the PersistentVolumes of the claim that the claim does not use. They include those of
// other drivers, because a claim may have moved from one driver to another.
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
		return nil, withAdvice(fmt.Errorf("get claim %s/%s: %w", w.Namespace, w.Claim, err))
	}
	return overview.StillThere(all, claim, w), nil
}
