package control

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// roomOfNode is a simulated node's space for PersistentVolumes.
const roomOfNode = 10 * volume.TiB

func nodeName(i int) string { return fmt.Sprintf("node-%04d.example.org", i) }

// nodes creates the nodes from..to-1 and their daemons' reports. The node objects are as large as a kubelet's,
// because their size affects memory.
func (b *bed) nodes(ctx context.Context, from, to int) error {
	return each(to-from, func(i int) error {
		name := nodeName(from + i)
		node, err := b.client.CoreV1().Nodes().Create(ctx, newNode(name), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		node.Spec.Taints = nil // admission taints new nodes, and the controller manager removes only a few taints per second
		if node, err = b.client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
		storage, err := b.storage.CreateNodeStorage(ctx, newStorage(name, node.UID))
		if err != nil {
			return err
		}
		return b.report(ctx, storage, roomOfNode)
	})
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
			corev1.LabelTopologyZone: "zone-1", corev1.LabelTopologyRegion: "region-1", corev1.LabelInstanceTypeStable: "metal",
		}},
		Status: statusOfNode(),
	}
}

// syntheticNode returns a node as the API server returns it, with the provisioner's annotations for the cluster
// autoscaler.
func syntheticNode(i int) *corev1.Node {
	out := newNode(nodeName(i))
	out.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	out.UID, out.ResourceVersion = types.UID(fmt.Sprintf("%08d-0000-4000-9000-000000000000", i)), version(1, i)
	out.Annotations = map[string]string{pv.AnnotationScaleDown: "true", pv.AnnotationScaleDownOurs: "true"}
	return out
}

func newStorage(name string, node types.UID) *flexlvmv1.NodeStorage {
	return &flexlvmv1.NodeStorage{ObjectMeta: metav1.ObjectMeta{
		Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: node}},
	}}
}

func statusOfNode() corev1.NodeStatus {
	var status corev1.NodeStatus
	status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	status.Allocatable = status.Capacity
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		condition := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			condition = corev1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, corev1.NodeCondition{
			Type: kind, Status: condition, Reason: "Simulated", Message: "a node of the bench, which has no kubelet",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for i := range 50 {
		name := fmt.Sprintf("registry.example.org/team/application-%02d", i)
		status.Images = append(status.Images, corev1.ContainerImage{
			Names: []string{name + ":v1.2.3", fmt.Sprintf("%s@sha256:%064d", name, i)}, SizeBytes: 100 << 20,
		})
	}
	return status
}

// report does what a node's daemon does after a round.
func (b *bed) report(ctx context.Context, storage *flexlvmv1.NodeStorage, room volume.Bytes) error {
	storage.Status = statusOfStorage(room)
	_, err := b.storage.UpdateNodeStorageStatus(ctx, storage)
	return err
}

func statusOfStorage(room volume.Bytes) flexlvmv1.NodeStorageStatus {
	amount := *resource.NewQuantity(int64(room), resource.BinarySI)
	return flexlvmv1.NodeStorageStatus{
		ObservedTime: metav1.Now(),
		Version:      "v0.1.0",
		Conditions: []metav1.Condition{{
			Type: flexlvmv1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Simulated", LastTransitionTime: metav1.Now(),
			Message: "a node of the bench, which has no daemon",
		}},
		Pools: []flexlvmv1.Pool{{
			Name: "flexlvm", UUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Layout: "linear",
			Size: amount, Free: amount, Allocatable: amount, DeviceFree: []resource.Quantity{amount},
			ExtentSize: resource.MustParse("4Mi"), VolumesByState: map[string]int32{"ready": 20},
		}},
	}
}
