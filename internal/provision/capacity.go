package provision

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// labelManaged marks the capacities that flexlvm may change and delete.
const (
	labelManaged = "app.kubernetes.io/managed-by"
	managedBy    = component
)

// An offeringNode identifies a node in its capacities.
type offeringNode struct {
	name     string
	hostname string    // value of its hostname label, by which the scheduler matches it
	report   types.UID // of its NodeStorage, which owns the capacities
}

// capacityOf returns the object that shows the scheduler how much a node can offer to a class, in
// usable bytes. MaximumVolumeSize determines whether a claim fits; Capacity determines which of the
// fitting nodes the scheduler prefers (Kubernetes 1.37). Both are equal, because a volume can use the
// whole offer, unless busy disks are to be avoided: then Capacity falls with the load.
func capacityOf(namespace string, node offeringNode, class *storagev1.StorageClass, maxSize volume.Bytes, busy int) *storagev1.CSIStorageCapacity {
	size := resource.NewQuantity(int64(maxSize), resource.BinarySI)
	weighted := resource.NewQuantity(int64(maxSize)/100*int64(100-min(busy, 99)), resource.BinarySI)
	if busy == 0 {
		weighted = size
	}
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      capacityName(class.Name, node.name),
			Labels: map[string]string{
				"app.kubernetes.io/part-of": "flexlvm",
				labelManaged:                managedBy,
				pv.LabelNode:                pv.NodeLabelValue(node.name),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: flexlvmv1.GroupVersion.String(), Kind: "NodeStorage", Name: node.name, UID: node.report,
			}},
		},
		NodeTopology:      &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelHostname: node.hostname}},
		StorageClassName:  class.Name,
		Capacity:          weighted,
		MaximumVolumeSize: size,
	}
}

// capacityName returns a unique name for each class and node. It contains both names for people, as far
// as they fit, and a hash of both for uniqueness.
func capacityName(class, node string) string {
	const maxLen = 253
	sum := sha256.Sum256([]byte(class + "/" + node))
	hash := hex.EncodeToString(sum[:5])
	head := class + "." + node
	head = strings.TrimRight(head[:min(len(head), maxLen-len(hash)-1)], "-.")
	return head + "-" + hash
}

// A change is the set of writes that make the API match the ledger.
type change struct {
	create, update []*storagev1.CSIStorageCapacity
	remove         []*storagev1.CSIStorageCapacity
}

// capacityChange compares the wanted and the existing capacities of one node. It removes an object that
// cannot be changed in place, or that has flexlvm's label but is not wanted.
func capacityChange(want, have []*storagev1.CSIStorageCapacity) change {
	var out change
	for _, w := range want {
		i := slices.IndexFunc(have, func(h *storagev1.CSIStorageCapacity) bool { return h.Name == w.Name })
		switch {
		case i < 0:
			out.create = append(out.create, w)
		case !equality.Semantic.DeepEqual(have[i].NodeTopology, w.NodeTopology) || have[i].StorageClassName != w.StorageClassName:
			out.remove = append(out.remove, have[i]) // immutable; created again once the cache shows the deletion
		case !sameCapacity(have[i], w):
			next := w.DeepCopy()
			next.ResourceVersion = have[i].ResourceVersion
			out.update = append(out.update, next)
		}
	}
	for _, h := range have {
		if !slices.ContainsFunc(want, func(w *storagev1.CSIStorageCapacity) bool { return h.Name == w.Name }) {
			out.remove = append(out.remove, h)
		}
	}
	return out
}

func sameCapacity(a, b *storagev1.CSIStorageCapacity) bool {
	return equality.Semantic.DeepEqual(a.Capacity, b.Capacity) &&
		equality.Semantic.DeepEqual(a.MaximumVolumeSize, b.MaximumVolumeSize) &&
		equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels)
}

// offers reports whether a class can be offered, and returns its parameters. A class whose claims are
// all refused gets no capacity, so that its claims get no node.
func offers(class *storagev1.StorageClass, usual pv.Door) (Parameters, bool) {
	if class.Provisioner != pv.Provisioner || class.DeletionTimestamp != nil {
		return Parameters{}, false
	}
	if _, err := mountOptions(class, pv.ClassDoor(class.Parameters, usual)); err != nil {
		return Parameters{}, false
	}
	parameters, err := ParseParameters(class.Parameters)
	return parameters, err == nil
}

func describeCapacity(c *storagev1.CSIStorageCapacity) string {
	return fmt.Sprintf("%s of class %s", c.Name, c.StorageClassName)
}
