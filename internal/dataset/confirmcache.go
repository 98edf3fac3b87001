package dataset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// confirmNoUnseenObjects returns errChanged if the API server has a claim or a PersistentVolume of a VolumeManager that s
// does not have. s is from the caches, which may not yet show an object that was created just before the
// VolumeManager was deleted; such an object would stay forever. Remaining objects that s has, such as a copy
// that somebody created of a claim, belong to no volume and do not keep the VolumeManager.
func (r *reconciler) confirmNoUnseenObjects(ctx context.Context, owner *flexlvmv1.VolumeManager, s *cacheView) error {
	seen := map[types.UID]bool{}
	for i := range s.claims {
		seen[s.claims[i].UID] = true
	}
	for i := range s.volumes {
		seen[s.volumes[i].UID] = true
	}
	// The selectors of the caches: an object that no cache ever shows would keep the VolumeManager forever.
	of := []client.ListOption{client.MatchingLabels{replica.LabelOwner: string(owner.UID)}, client.HasLabels{replica.LabelDataset}}
	for kind, in := range map[string][]client.ListOption{
		"PersistentVolumeList":      of,
		"PersistentVolumeClaimList": append(of[:len(of):len(of)], client.InNamespace(owner.Namespace)),
	} {
		if err := r.confirmListed(ctx, kind, in, seen); err != nil {
			return fmt.Errorf("list what is left of VolumeManager %s/%s: %w", owner.Namespace, owner.Name, err)
		}
	}
	return nil
}

// confirmPageSize is the number of objects that confirmListed reads at a time: a tenant can label any number of claims,
// and the annotations of each may have 256 KiB.
const confirmPageSize = 50

// confirmListed returns errChanged if the API server has an object of a kind that was not seen.
func (r *reconciler) confirmListed(ctx context.Context, kind string, in []client.ListOption, seen map[types.UID]bool) error {
	for next := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		if err := r.live.List(ctx, list, slices.Concat(in, []client.ListOption{client.Limit(confirmPageSize), client.Continue(next)})...); err != nil {
			return err
		}
		for i := range list.Items {
			if !seen[list.Items[i].UID] {
				return errChanged
			}
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}
