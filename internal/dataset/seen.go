package dataset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// confirmSeen returns errChanged if the API server has a claim or a PersistentVolume of a VolumeManager
// that s does not have. s is from the watches, which may not yet show an object that was made just before
// the VolumeManager was deleted; such an object would stay for ever. Objects that s has and that are
// left, such as a copy that somebody made of a claim, are of no volume and do not keep the VolumeManager.
func (r *reconciler) confirmSeen(ctx context.Context, owner *flexlvmv1.VolumeManager, s *snapshot) error {
	seen := map[types.UID]bool{}
	for i := range s.claims {
		seen[s.claims[i].UID] = true
	}
	for i := range s.volumes {
		seen[s.volumes[i].UID] = true
	}
	// As the watches are, or what none of them ever shows would keep the VolumeManager for ever.
	of := []client.ListOption{client.MatchingLabels{replica.LabelOwner: string(owner.UID)}, client.HasLabels{replica.LabelDataset}}
	for kind, in := range map[string][]client.ListOption{
		"PersistentVolumeList":      of,
		"PersistentVolumeClaimList": append(of[:len(of):len(of)], client.InNamespace(owner.Namespace)),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
		if err := r.live.List(ctx, list, in...); err != nil {
			return fmt.Errorf("list what is left of VolumeManager %s/%s: %w", owner.Namespace, owner.Name, err)
		}
		for i := range list.Items {
			if !seen[list.Items[i].UID] {
				return errChanged
			}
		}
	}
	return nil
}
