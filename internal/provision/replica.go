package provision

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// dataset returns the hash of the dataset that a claim declares to be a replica of; false if it
// declares none.
func (r Request) dataset() (hash string, is bool) {
	hash, is = r.Claim.Labels[replica.LabelDataset]
	return hash, is
}

// checkReplica rejects claims that only pretend to be a replica's, and classes of the wrong kind: room
// that replicas hold is offered only to claims, so a class must serve either replicas or claims.
func (r Request) checkReplica(p Parameters, wrong *controlplane.Problems) {
	hash, is := r.dataset()
	if !is {
		if p.Kind == volume.Dataset {
			wrong.Add(fmt.Sprintf("StorageClass %q is for replicas of datasets (%s %q), which a VolumeManager makes claims for; use another class", r.Class.Name, volume.OptionKind, p.Kind))
		}
		return
	}
	if p.Kind != volume.Dataset {
		wrong.Add(fmt.Sprintf("StorageClass %q is not for replicas of datasets; name one with parameter %s %q", r.Class.Name, volume.OptionKind, volume.Dataset))
	}
	if !waits(r.Class) {
		wrong.Add(fmt.Sprintf("StorageClass %q binds immediately, and a replica is placed with the pod that fills it; use volumeBindingMode WaitForFirstConsumer", r.Class.Name))
	}
	if r.Class.ReclaimPolicy != nil && *r.Class.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		wrong.Add(fmt.Sprintf("StorageClass %q has reclaimPolicy Retain, and a replica whose volume is kept keeps its node from ever having another; use Delete", r.Class.Name))
	}
	if sourceOf(r.Claim.Spec) != (dataSource{}) {
		wrong.Add("dataSource: a replica is filled from the source of its VolumeManager; leave it out")
	}
	owner, id := metav1.GetControllerOf(r.Claim), r.Claim.Annotations[replica.AnnotationVolumeID]
	switch {
	case owner == nil || owner.Kind != replica.OwnerKind || !strings.HasPrefix(owner.APIVersion, replica.OwnerGroup+"/"):
		wrong.Add(fmt.Sprintf("the label %s says that this claim is a replica's, and no %s controls it; leave the label out, or make a %s", replica.LabelDataset, replica.OwnerKind, replica.OwnerKind))
	case !replica.IsID(id): // it is copied to the PersistentVolume
		wrong.Add(fmt.Sprintf("the annotation %s, of %d bytes, is not the id of a volume; only the controller of a %s makes claims of replicas", replica.AnnotationVolumeID, len(id), replica.OwnerKind))
	case hash != replica.Hash(r.Claim.Namespace, string(owner.UID), id):
		wrong.Add(fmt.Sprintf("the label %s is not that of volume %q of %s %q; only its controller makes claims of replicas", replica.LabelDataset, id, replica.OwnerKind, owner.Name))
	}
	_, err := volume.ParseEvictionPolicy(replica.AnnotationEviction, r.Claim.Annotations[replica.AnnotationEviction])
	wrong.Check(err)
}

// asReplica records on the PersistentVolume of a replica which replica it is. Check must have passed.
func (r Request) asReplica(object *corev1.PersistentVolume) {
	hash, is := r.dataset()
	if !is {
		return
	}
	owner := metav1.GetControllerOf(r.Claim)
	policy, _ := volume.ParseEvictionPolicy(replica.AnnotationEviction, r.Claim.Annotations[replica.AnnotationEviction])
	maps.Copy(object.Labels, map[string]string{replica.LabelDataset: hash, replica.LabelOwner: string(owner.UID)})
	maps.Copy(object.Annotations, map[string]string{
		replica.AnnotationEviction: string(policy),
		replica.AnnotationOwner:    owner.Name,
		replica.AnnotationVolumeID: r.Claim.Annotations[replica.AnnotationVolumeID],
		replica.AnnotationReaders:  replica.ReadersClaim(owner.Name, r.Claim.Annotations[replica.AnnotationVolumeID]),
		// The volume's name is used again, so it is removed as soon as its claim is deleted.
		pv.AnnotationReclaim: string(volume.ReclaimImmediate),
	})
	if r.Claim.Annotations[replica.AnnotationWritable] != "" {
		// No source has what consumers write: like a claim's volume, this one waits for its node.
		object.Annotations[pv.AnnotationOnNodeLoss] = string(volume.OnNodeLossKeep)
	}
}

// checkOwnerOfReplica reads the owner of a replica from the API server: anyone who can create claims
// can write any label and any owner. A *Refusal means that there is no such owner; any other error may
// be transient.
func (p *Provisioner) checkOwnerOfReplica(ctx context.Context, r Request) error {
	if _, is := r.dataset(); !is {
		return nil
	}
	owner := metav1.GetControllerOf(r.Claim)
	found, err := p.Listers.Live.Owner(ctx, r.Claim.Namespace, owner.Name)
	switch {
	case apierrors.IsNotFound(err):
		return &controlplane.Refusal{Problems: []string{fmt.Sprintf("%s %q, which this claim is to be a replica for, is not in namespace %q", replica.OwnerKind, owner.Name, r.Claim.Namespace)}}
	case err != nil:
		return fmt.Errorf("look up the owner of a replica: %w; it is retried", err)
	case found.UID != owner.UID:
		return &controlplane.Refusal{Problems: []string{fmt.Sprintf("%s %q is not the one that this claim is a replica for", replica.OwnerKind, owner.Name)}}
	case found.DeletionTimestamp != nil:
		return fmt.Errorf("%s %q is being deleted, so no replica is made for it", replica.OwnerKind, owner.Name)
	}
	return nil
}

// checkNoOtherReplica fails if the node has a replica of the dataset, or has not removed one yet: both
// would have the same name. The ledger knows replicas whose PersistentVolumes are not written yet.
func (p *Provisioner) checkNoOtherReplica(r Request, node string) error {
	hash, is := r.dataset()
	if !is {
		return nil
	}
	others, err := p.Listers.OnNode(pv.NodeLabelValue(node))
	if err != nil {
		return fmt.Errorf("look for other replicas of the dataset: %w", err)
	}
	others = slices.DeleteFunc(others, func(o *corev1.PersistentVolume) bool {
		return o.Labels[replica.LabelDataset] != hash || o.Name == r.PVName
	})
	if len(others) == 0 {
		return nil
	}
	return &ledger.NoRoomError{Node: node, Why: fmt.Sprintf("has a replica of this dataset already, or is not rid of it yet (PersistentVolume %q)", others[0].Name)}
}
