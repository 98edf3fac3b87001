package control

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// clients is the number of the bench's own requests in parallel.
const clients = 20

// each calls do for 0..n-1, several at a time.
func each(n int, do func(i int) error) error { return eachOf(clients, n, do) }

func eachOf(workers, n int, do func(i int) error) error {
	var all sync.WaitGroup
	failed := make([]error, workers)
	for w := range workers {
		all.Go(func() {
			for i := w; i < n && failed[w] == nil; i += workers {
				failed[w] = do(i)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// A batch is a set of claims that are created together, and the names of their PersistentVolumes.
type batch struct {
	claims []*corev1.PersistentVolumeClaim
	names  []string
}

func (b batch) node(i int) string { return b.claims[i].Annotations[annotationNode] }

const (
	annotationNode        = "volume.kubernetes.io/selected-node"
	annotationProvisioner = "volume.kubernetes.io/storage-provisioner"
)

// claim creates a claim for a node, in the state in which the scheduler and the controller manager leave it to the
// provisioner. If volume is not empty, the claim already names its volume.
func (b *bed) claim(ctx context.Context, name, node, volume string) (*corev1.PersistentVolumeClaim, error) {
	return b.client.CoreV1().PersistentVolumeClaims(space).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			annotationNode: node, annotationProvisioner: pv.Provisioner,
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &b.classes[0],
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeName:       volume,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: resource.MustParse("1Gi"),
			}},
		},
	}, metav1.CreateOptions{})
}

// pod creates the pod of a claim. The pod stays pending, because no scheduler is responsible for it.
func (b *bed) pod(ctx context.Context, claim string) error { return b.podOf(ctx, claim, "none") }

// podOf creates the pod of a claim for the named scheduler.
func (b *bed) podOf(ctx context.Context, claim, scheduler string) error {
	_, err := b.client.CoreV1().Pods(space).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers:    []corev1.Container{{Name: "c", Image: "busybox:1.36"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{})
	return err
}

// waiting creates n claims for volumes on the first so many nodes, each with its pod.
func (b *bed) waiting(ctx context.Context, prefix string, n, nodes int) (batch, error) {
	out := batch{claims: make([]*corev1.PersistentVolumeClaim, n), names: make([]string, n)}
	return out, each(n, func(i int) error {
		name := fmt.Sprintf("%s-%05d", prefix, i)
		if err := b.pod(ctx, name); err != nil {
			return err
		}
		claim, err := b.claim(ctx, name, nodeName(i%nodes), "")
		if err != nil {
			return err
		}
		out.claims[i], out.names[i] = claim, "pvc-"+string(claim.UID)
		return nil
	})
}

// served creates n claims on the nodes from..to-1 whose volumes the bench creates instead of the provisioner.
func (b *bed) served(ctx context.Context, prefix string, n, from, to int) (batch, error) {
	out := batch{claims: make([]*corev1.PersistentVolumeClaim, n), names: make([]string, n)}
	return out, each(n, func(i int) error {
		name := fmt.Sprintf("%s-%05d", prefix, i)
		volume := "pvc-" + name
		claim, err := b.claim(ctx, name, nodeName(from+i%(to-from)), volume)
		out.claims[i], out.names[i] = claim, volume
		return err
	})
}

// letGo deletes the pods. To the provisioner, this looks like scheduling them: it watches only pods without a node.
func (b *bed) letGo(ctx context.Context) error {
	now := int64(0)
	return b.client.CoreV1().Pods(space).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
}

// volumeLike returns the PersistentVolume that the provisioner would create for a claim; like is one that it
// created.
func volumeLike(like *corev1.PersistentVolume, name, node string, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	out := like.DeepCopy()
	out.ObjectMeta = metav1.ObjectMeta{
		Name: name, Labels: map[string]string{pv.LabelNode: pv.NodeLabelValue(node)},
		Annotations: like.Annotations, Finalizers: like.Finalizers,
	}
	out.Status = corev1.PersistentVolumeStatus{}
	out.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{node}
	out.Spec.ClaimRef.Namespace, out.Spec.ClaimRef.Name = claim.Namespace, claim.Name
	out.Spec.ClaimRef.UID, out.Spec.ClaimRef.ResourceVersion = claim.UID, claim.ResourceVersion
	return out
}
