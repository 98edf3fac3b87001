package dataset

import (
	"cmp"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// displace asks replicas of other datasets to make way for the first starved replica that this helps: with
// replicas: All each waits for a node of its own, and the node of the first may have nothing to displace. The
// request is first recorded on the replica's own claim, which bounds how often this is done.
func (r *reconciler) displace(ctx context.Context, observed *Observed, starved []int, s *cacheView) error {
	all, err := r.occupants(ctx, observed, nodesFitting(observed, starved, s.nodes))
	if err != nil || len(all) == 0 {
		return err // without an occupant, no more requests to the API server
	}
	free, err := r.freeOn(ctx, observed, s.nodes, all)
	if err != nil {
		return err
	}
	for _, index := range starved {
		claim := observed.Replicas[index].Claim
		chosen := victims(roomRequest{need: observed.Source.Capacity.Value(), free: freeFor(claim, free)}, all)
		if len(chosen) > 0 {
			return r.requestDisplacement(ctx, observed, claim, chosen)
		}
	}
	return nil
}

// nodesFitting returns the nodes that a starved replica may be on and that accept its loader now: displacing a
// replica on another node makes no room for it.
func nodesFitting(observed *Observed, starved []int, nodes []*corev1.Node) (out []*corev1.Node) {
	named := map[string]bool{}
	for _, index := range starved {
		named[observed.Replicas[index].Claim.Annotations[annotationNode]] = true
	}
	for _, node := range nodes {
		_, has := node.Labels[observed.label()]
		if !has && observed.Fitting[node.Name] && (named[""] || named[node.Name]) && takesPods(node, observed.Config.Tolerations) {
			out = append(out, node)
		}
	}
	return out
}

// requestDisplacement asks replicas of other datasets to make way for a claim.
func (r *reconciler) requestDisplacement(ctx context.Context, observed *Observed, claim *corev1.PersistentVolumeClaim, chosen []occupant) error {
	name := fmt.Sprintf("%s/%s/%s", observed.Owner.Namespace, observed.Owner.Name, observed.Config.ID)
	if err := r.annotate(ctx, claim, map[string]string{annotationMakesRoom: observed.Now.UTC().Format(time.RFC3339)}); err != nil {
		return err
	}
	for _, o := range chosen {
		if err := r.annotate(ctx, o.claim, map[string]string{annotationDisplacedBy: name}); err != nil {
			return err
		}
		r.event(observed.Owner, corev1.EventTypeNormal, "Displaces", fmt.Sprintf("no node has room for claim %s; on node %s the eviction of claim %s of dataset %s, which no pod reads, is requested", claim.Name, o.node, o.claim.GetName(), o.of))
	}
	return nil
}

// annotate changes an object only if its UID and resourceVersion are those observed.
func (r *reconciler) annotate(ctx context.Context, object client.Object, annotations map[string]string) error {
	return r.patch(ctx, object, map[string]any{"metadata": map[string]any{
		"uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(), "annotations": annotations,
	}})
}

// freeOn returns the capacity that the scheduler sees on each node with an occupant.
func (r *reconciler) freeOn(ctx context.Context, observed *Observed, nodes []*corev1.Node, all []occupant) (map[string]int64, error) {
	capacities := &storagev1.CSIStorageCapacityList{}
	if err := r.live.List(ctx, capacities, client.InNamespace(r.Namespace)); err != nil {
		return nil, fmt.Errorf("list capacities: %w", err)
	}
	occupied := map[string]bool{}
	for _, o := range all {
		occupied[o.node] = true
	}
	out := map[string]int64{}
	for i := range capacities.Items {
		c := &capacities.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(c.NodeTopology)
		size := cmp.Or(c.MaximumVolumeSize, c.Capacity) // as the scheduler does
		if err != nil || c.StorageClassName != observed.Source.Class || size == nil {
			continue
		}
		for _, node := range nodes {
			if occupied[node.Name] && selector.Matches(labels.Set(node.Labels)) {
				out[node.Name] = size.Value()
			}
		}
	}
	return out, nil
}

// freeFor returns the part of free for the nodes that a claim may be on.
func freeFor(claim *corev1.PersistentVolumeClaim, free map[string]int64) map[string]int64 {
	only := claim.Annotations[annotationNode]
	if only == "" {
		return free
	}
	out := map[string]int64{}
	if size, known := free[only]; known {
		out[only] = size
	}
	return out
}

// occupants returns the replicas of other datasets on these nodes that may be displaced. A replica with
// anything unknown is left out.
func (r *reconciler) occupants(ctx context.Context, observed *Observed, nodes []*corev1.Node) ([]occupant, error) {
	claims, volumes := &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}
	if err := r.cached.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("list claims of datasets: %w", err)
	}
	if err := r.cached.List(ctx, volumes); err != nil {
		return nil, fmt.Errorf("list PersistentVolumes of datasets: %w", err)
	}
	byClaim, shared := indexVolumes(volumes.Items)
	wanted := map[string]map[string]bool{} // claims that the pods of a namespace name
	var out []occupant
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !isDisplaceable(claim, observed) || shared[claim.Labels[replica.LabelDataset]] {
			continue
		}
		volume := byClaim[string(claim.UID)]
		node := nodeOf(volume, nodes)
		if node == "" || volume.Annotations[replica.AnnotationEvict] != "" {
			continue
		}
		owner, known, err := r.ownerOfCompleteReplica(ctx, claim)
		if err != nil {
			return nil, err
		}
		if !known {
			continue
		}
		if wanted[claim.Namespace] == nil {
			if wanted[claim.Namespace], err = r.claimsOfPods(ctx, claim.Namespace); err != nil {
				return nil, err
			}
		}
		id := claim.Annotations[replica.AnnotationVolumeID]
		if wanted[claim.Namespace][claim.Name] || wanted[claim.Namespace][replica.ReadersClaim(owner, id)] {
			continue
		}
		size := claim.Status.Capacity[corev1.ResourceStorage]
		read := timeOf(claim, annotationLastRead)
		if read.IsZero() {
			read = claim.CreationTimestamp.Time
		}
		out = append(out, occupant{claim: claim, of: fmt.Sprintf("%s/%s/%s", claim.Namespace, owner, id), node: node, size: size.Value(), lastRead: read})
	}
	return out, nil
}

// indexVolumes returns PersistentVolumes by the UIDs of their claims, and the datasets that other namespaces read,
// which are not displaced: a pod there may use them, and their own plan would refuse.
func indexVolumes(volumes []corev1.PersistentVolume) (byClaim map[string]*corev1.PersistentVolume, shared map[string]bool) {
	byClaim, shared = map[string]*corev1.PersistentVolume{}, map[string]bool{}
	for i := range volumes {
		if ref := volumes[i].Spec.ClaimRef; ref != nil {
			byClaim[string(ref.UID)] = &volumes[i]
		}
		if hash := volumes[i].Labels[replica.LabelShared]; hash != "" {
			shared[hash] = true
		}
	}
	return byClaim, shared
}

// isDisplaceable reports whether a claim belongs to a complete replica of another dataset that may be displaced and
// is not yet, in the same class and so on the same disks.
func isDisplaceable(claim *corev1.PersistentVolumeClaim, observed *Observed) bool {
	a := claim.Annotations
	return a[annotationDisplaceable] != "" && a[annotationDisplacedBy] == "" && a[replica.AnnotationComplete] != "" && a[replica.AnnotationWritable] == "" &&
		claim.Status.Phase == corev1.ClaimBound && !isDeleting(claim) && claim.Labels[replica.LabelDataset] != observed.hash() &&
		claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == observed.Source.Class
}

// ownerOfCompleteReplica returns the name of the VolumeManager of a claim, if its status lists the claim as that of a
// complete replica: a replica that is not listed would not be remembered as displaced. A VolumeManager whose
// spec cannot be parsed gives up no replica.
func (r *reconciler) ownerOfCompleteReplica(ctx context.Context, claim *corev1.PersistentVolumeClaim) (name string, known bool, err error) {
	ref := metav1.GetControllerOf(claim)
	if ref == nil {
		return "", false, nil
	}
	owner := &flexlvmv1.VolumeManager{}
	if err := r.cached.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: ref.Name}, owner); err != nil {
		return "", false, client.IgnoreNotFound(err)
	}
	if owner.UID != ref.UID || isDeleting(owner) {
		return "", false, nil
	}
	for _, v := range owner.Status.Volumes {
		if !isReadable(owner, v.ID) {
			continue
		}
		for _, n := range v.Nodes {
			if n.Claim == claim.Name && n.State == flexlvmv1.ReplicaComplete {
				return owner.Name, true, nil
			}
		}
	}
	return "", false, nil
}

// isReadable reports whether the spec of a VolumeManager has this volume and it can be parsed.
func isReadable(owner *flexlvmv1.VolumeManager, id string) bool {
	for _, v := range owner.Spec.All() {
		if v.ID == id {
			_, err := ParseSource(v)
			return err == nil
		}
	}
	return false
}

// claimsOfPods returns the claims that the pods of a namespace name, read from the API server: pods that have
// not ended, including pods that wait for a node.
func (r *reconciler) claimsOfPods(ctx context.Context, namespace string) (map[string]bool, error) {
	out := map[string]bool{}
	err := r.Pods(ctx, namespace, func(pod *corev1.Pod) {
		if kubeobject.PodEnded(pod) {
			return
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				out[v.PersistentVolumeClaim.ClaimName] = true
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}
