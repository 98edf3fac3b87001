package migration

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// protection is the finalizer by which Kubernetes keeps a PersistentVolume that a claim is bound to. It is no
// obstacle: the claim is bound again.
const protection = "kubernetes.io/pv-protection"

// maxName is the longest name of a PersistentVolume.
const maxName = 253

// check returns an error if the move of a PersistentVolume cannot begin.
func (m *Mover) check(ctx context.Context, s state, door pv.Door) error {
	object, claim := s.volume, s.claim
	if object.DeletionTimestamp != nil || claim.DeletionTimestamp != nil {
		return fmt.Errorf("claim %s/%s or its PersistentVolume %s is being deleted", claim.Namespace, claim.Name, object.Name)
	}
	ref := object.Spec.ClaimRef
	if claim.Status.Phase != corev1.ClaimBound || object.Status.Phase != corev1.VolumeBound || ref == nil || ref.UID != claim.UID {
		return fmt.Errorf("claim %s/%s is %s and PersistentVolume %s is %s; they can move only while they are bound to each other", claim.Namespace, claim.Name, claim.Status.Phase, object.Name, object.Status.Phase)
	}
	if err := movable(object, door); err != nil {
		return err
	}
	if err := onlyOurs(object); err != nil {
		return err
	}
	if door == pv.CSI {
		if err := m.driverThere(ctx, object); err != nil {
			return err
		}
	}
	return m.unused(ctx, claim)
}

// movable returns an error if PersistentVolumes of this kind cannot move, or not to this door.
func movable(object *corev1.PersistentVolume, door pv.Door) error {
	parsed, err := persistentvolume.Parse(object)
	switch {
	case err != nil:
		return err
	case parsed.Kind != volume.Claim:
		return fmt.Errorf("PersistentVolume %s is a replica of a dataset and cannot move; its StorageClass determines its driver when the dataset is loaded", object.Name)
	case len(placeholderName(object.Name)) > maxName:
		return fmt.Errorf("the name of PersistentVolume %s is too long to move: its placeholder %s would have more than %d characters", object.Name, placeholderName(object.Name), maxName)
	case door == pv.Flex && parsed.Encrypted:
		return fmt.Errorf("PersistentVolume %s is encrypted, and kubelet would pass its key to the FlexVolume driver in arguments; it must stay with the CSI driver", object.Name)
	case door == pv.Flex && parsed.FSType == volume.Raw:
		return fmt.Errorf("PersistentVolume %s has volumeMode Block, which FlexVolumes do not support; it must stay with the CSI driver", object.Name)
	case door == pv.Flex && len(object.Spec.MountOptions) > 0:
		return fmt.Errorf("PersistentVolume %s has mount options (%v), which FlexVolumes do not support; it must stay with the CSI driver", object.Name, object.Spec.MountOptions)
	case door == pv.Flex && slices.Contains(object.Spec.AccessModes, corev1.ReadWriteOncePod):
		return fmt.Errorf("PersistentVolume %s has the access mode ReadWriteOncePod, which FlexVolumes do not support; it must stay with the CSI driver", object.Name)
	case door == pv.Flex && object.Spec.VolumeAttributesClassName != nil:
		return fmt.Errorf("PersistentVolume %s has the VolumeAttributesClass %s, which FlexVolumes do not support; it must stay with the CSI driver", object.Name, *object.Spec.VolumeAttributesClassName)
	}
	return nil
}

// onlyOurs returns an error if a PersistentVolume has a finalizer that is neither flexlvm's nor Kubernetes'.
func onlyOurs(object *corev1.PersistentVolume) error {
	for _, f := range object.Finalizers {
		if f != pv.Finalizer && f != protection {
			return fmt.Errorf("PersistentVolume %s has the finalizer %s of another component; it can move once that component has removed the finalizer", object.Name, f)
		}
	}
	return nil
}

// driverThere returns an error if the kubelet of the volume's node does not have the CSI driver. If the node's
// name is too long for a label, it is not known and not checked.
func (m *Mover) driverThere(ctx context.Context, object *corev1.PersistentVolume) error {
	node := object.Labels[pv.LabelNode]
	if !pv.IsNodeName(node) {
		return nil
	}
	found := &storagev1.CSINode{}
	if err := m.Client.Get(ctx, client.ObjectKey{Name: node}, found); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read CSINode %s: %w", node, err)
	}
	for _, d := range found.Spec.Drivers {
		if d.Name == pv.Provisioner {
			return nil
		}
	}
	return fmt.Errorf("the CSI driver %[2]s is not registered with the kubelet of node %[1]s; install it first (kubectl apply -k installer/csi)", node, pv.Provisioner)
}

// unused returns an error if a pod uses a claim or is about to.
func (m *Mover) unused(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	pods := &corev1.PodList{}
	if err := m.Client.List(ctx, pods, client.InNamespace(claim.Namespace)); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if slices.Contains(kubeobject.ClaimsOf(pod), claim.Namespace+"/"+claim.Name) && !kubeobject.PodEnded(pod) && !waits(pod) {
			return fmt.Errorf("%w: pod %s uses claim %s/%s; delete it, or keep it from starting, and run the same command again", ErrInUse, pod.Name, claim.Namespace, claim.Name)
		}
	}
	return nil
}

// waits reports whether a pod has no node, and the scheduler has found that it cannot have one at the moment:
// it has scheduling gates, or its node takes no pods.
func waits(pod *corev1.Pod) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
		return false
	}
	return kubeobject.PodNotScheduledFor(pod, corev1.PodReasonUnschedulable, corev1.PodReasonSchedulingGated)
}
