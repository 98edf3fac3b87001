package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// scaleDownDelay batches the changes of a node's volumes, of which there may be many.
	scaleDownDelay = 2 * time.Second
	// yes is the value that the cluster autoscaler expects, and the value that marks the annotation as
	// flexlvm's.
	yes = "true"
)

// A scaleDownGuard keeps the cluster autoscaler from removing nodes that hold volumes. The autoscaler
// treats a node without pods as empty, and would remove it together with volumes that wait for their
// pods. Its queue holds node labels.
type scaleDownGuard struct {
	client  kubernetes.Interface
	listers Listers
	reports cache.Store // NodeStorages
	// nameOf returns the name of the node with a label.
	nameOf func(label string) (name string, known bool)
	queue  workqueue.TypedRateLimitingInterface[string]
}

func newScaleDownGuard(client kubernetes.Interface, listers Listers, reports cache.Store, nameOf func(string) (string, bool)) *scaleDownGuard {
	return &scaleDownGuard{client, listers, reports, nameOf, workqueue.NewTypedRateLimitingQueue(controlplane.RetryLimiter())}
}

func (g *scaleDownGuard) enqueueNode(node *corev1.Node) { g.enqueue(pv.NodeLabelValue(node.Name)) }

// reportHandler returns a handler of the nodes' reports, most of whose changes do not matter here.
func (g *scaleDownGuard) reportHandler() cache.ResourceEventHandler {
	enqueue := func(obj any) { g.enqueue(pv.NodeLabelValue(obj.(*flexlvmv1.NodeStorage).Name)) }
	return cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(was, now any) {
		if retainsVolumes(was.(*flexlvmv1.NodeStorage)) != retainsVolumes(now.(*flexlvmv1.NodeStorage)) {
			enqueue(now)
		}
	}}
}

func (g *scaleDownGuard) enqueueForVolume(object *corev1.PersistentVolume) {
	if label := controlplane.NodeLabel(object); label != "" {
		g.enqueue(label)
	}
}

func (g *scaleDownGuard) enqueue(label string) { g.queue.AddAfter(label, scaleDownDelay) }

// run annotates nodes until ctx ends.
func (g *scaleDownGuard) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		g.queue.ShutDown()
	}()
	for {
		label, ended := g.queue.Get()
		if ended {
			return
		}
		if err := g.guard(ctx, label); err != nil {
			if ctx.Err() == nil && g.queue.NumRequeues(label) == 0 {
				klog.FromContext(ctx).Error(err, "Whether the cluster autoscaler may remove a node could not be written; it is retried", "node", label)
			}
			g.queue.AddRateLimited(label)
		} else {
			g.queue.Forget(label)
		}
		g.queue.Done(label)
	}
}

// guard annotates a node while it holds volumes, and removes its own annotation afterwards. It does not
// change a user's annotation.
func (g *scaleDownGuard) guard(ctx context.Context, label string) error {
	name, known := g.nameOf(label)
	if !known {
		return nil
	}
	node, err := g.listers.Nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	holds, err := g.holdsVolumes(label)
	if err != nil {
		return err
	}
	if !holds {
		retains, reported, err := g.retains(name)
		if err != nil || !reported && node.Annotations[pv.AnnotationScaleDownOurs] == yes {
			return err // without a report, the node may have retained volumes or orphans
		}
		holds = retains
	}
	change := scaleDownChange(node.Annotations, holds)
	if len(change) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": node.UID, "annotations": change}})
	if err != nil {
		return err
	}
	_, err = g.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("annotate node %s: %w", name, err)
	}
	return nil
}

// scaleDownChange returns the changes to a node's annotations; a nil value removes the annotation.
func scaleDownChange(has map[string]string, holds bool) map[string]any {
	value, there := has[pv.AnnotationScaleDown]
	ours := has[pv.AnnotationScaleDownOurs] == yes
	switch {
	case holds && !there:
		return map[string]any{pv.AnnotationScaleDown: yes, pv.AnnotationScaleDownOurs: yes}
	case !holds && ours && value == yes:
		return map[string]any{pv.AnnotationScaleDown: nil, pv.AnnotationScaleDownOurs: nil}
	case ours && value != yes: // a user has changed the value since
		return map[string]any{pv.AnnotationScaleDownOurs: nil}
	}
	return nil
}

// holdsVolumes reports whether a node holds a volume whose data exists nowhere else.
func (g *scaleDownGuard) holdsVolumes(label string) (bool, error) {
	volumes, err := g.listers.OnNode(label)
	if err != nil {
		return false, err
	}
	for _, v := range volumes {
		if keepsNode(v) {
			return true, nil
		}
	}
	return false, nil
}

// retains reports whether a node has retained volumes or orphans, and whether it has reported at all.
func (g *scaleDownGuard) retains(node string) (retains, reported bool, err error) {
	object, reported, err := g.reports.GetByKey(node)
	if err != nil || !reported {
		return false, false, err
	}
	return retainsVolumes(object.(*flexlvmv1.NodeStorage)), true, nil
}

// retainsVolumes reports whether a node has volumes that are kept without a PersistentVolume until a
// person gives them up: retained volumes, and orphans, such as the volumes that the API server lost when it was
// restored from a backup, both including those of volume groups that the node does not see at present. The report
// counts volumes with a problem as orphans. Orphaned replicas count, too: consumers may have written to them. The
// cache holds only the fields that this function reads.
func retainsVolumes(report *flexlvmv1.NodeStorage) bool {
	retained := slices.ContainsFunc(report.Status.Pools, func(p flexlvmv1.Pool) bool {
		return p.VolumesByState[string(volume.Retained)] > 0
	})
	unseen := slices.ContainsFunc(report.Status.Released, func(r flexlvmv1.ReleasedVolume) bool {
		return r.Kept == flexlvmv1.KeptRetained
	})
	return retained || unseen || report.Status.OrphanCount > 0
}

// keepsNode reports whether a PersistentVolume that flexlvm has created, also of a discovered volume,
// keeps its node. A snapshot does once it was taken: no claim is ever bound to it. A replica does if its claim
// is kept when the node is lost: consumers may write to it, or its class says so. The data of other replicas can
// be fetched again.
func keepsNode(object *corev1.PersistentVolume) bool {
	if object.Annotations[pv.AnnotationProvisionedBy] == flexlvmv1.Discoverer {
		return discoveredKeepsNode(object)
	}
	if !persistentvolume.IsOurs(object) {
		return false
	}
	if persistentvolume.IsSnapshot(object) {
		_, taken := persistentvolume.TakenAt(object)
		return taken
	}
	_, replicated := object.Labels[replica.LabelDataset]
	if replicated && object.Annotations[pv.AnnotationOnNodeLoss] != string(volume.OnNodeLossKeep) {
		return false
	}
	switch object.Status.Phase {
	case corev1.VolumeBound:
		return true
	case corev1.VolumeAvailable:
		// It may have the data of an earlier claim, unless its LocalVolume still waits for the first. With
		// the policy Retain, somebody may have made it available again after that claim.
		return object.Annotations[pv.AnnotationDeclared] == "" || retained(object)
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return retained(object) // otherwise its volume is given up
	}
	return false
}

// discoveredKeepsNode is keepsNode for a discovered volume. A released one may be kept whatever its
// policy is, because its class says so or because it cannot be cleaned. An available one has nothing of
// a claim, unless its policy is Retain: then somebody may have made it available again.
func discoveredKeepsNode(object *corev1.PersistentVolume) bool {
	switch object.Status.Phase {
	case corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed:
		return true
	case corev1.VolumeAvailable:
		return retained(object)
	}
	return false
}

func retained(object *corev1.PersistentVolume) bool {
	return object.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}
