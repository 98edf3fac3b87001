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

// confirmSeen that the API server has no claim and no PersistentVolume of a VolumeManager that the
// watches had not shown when its volumes were planned: what was made just before it was deleted may not
// be, and would stay for ever. What was seen and is left, such as a copy that somebody made of a
// claim, is of no volume and does not keep the VolumeManager.
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
