package provision

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/growth"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/nodeloss"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// watches are the informers of the whole cluster's objects that determine where volumes can be.
type watches struct {
	client  kubernetes.Interface
	factory informers.SharedInformerFactory // classes, nodes, volumes and claims
	volumes controlplane.Packed
	claims  controlplane.Packed
	own     informers.SharedInformerFactory // flexlvm's capacities
	pods    *waitingPods
	owner   func(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error)
	storage cache.SharedIndexInformer
	synced  []cache.InformerSynced
}

func newWatches(config Config) (*watches, error) {
	w := &watches{
		client:  config.Client,
		factory: informers.NewSharedInformerFactoryWithOptions(config.Client, controlplane.Resync, informers.WithTransform(controlplane.Pack)),
		own: informers.NewSharedInformerFactoryWithOptions(config.Client, 0, informers.WithTransform(controlplane.Transform),
			informers.WithNamespace(config.Namespace),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = labelManaged + "=" + managedBy })),
		storage: cache.NewSharedIndexInformer(config.Storage.WatchNodeStorages(), &flexlvmv1.NodeStorage{}, 0, cache.Indexers{}),
	}
	w.owner = config.Storage.VolumeManager
	w.volumes = controlplane.Packed{SharedIndexInformer: w.factory.Core().V1().PersistentVolumes().Informer()}
	w.claims = controlplane.Packed{SharedIndexInformer: w.factory.Core().V1().PersistentVolumeClaims().Informer()}
	err := w.volumes.AddIndexers(controlplane.NodeIndex())
	if err != nil {
		return nil, err
	}
	if w.pods, err = newWaitingPods(config.Client, config.Storage, podResync); err != nil {
		return nil, err
	}
	return w, w.storage.SetTransform(controlplane.Transform)
}

func (w *watches) listers() Listers {
	return Listers{
		Nodes:   w.factory.Core().V1().Nodes().Lister(),
		Claims:  corelisters.NewPersistentVolumeClaimLister(w.claims.GetIndexer()),
		Classes: w.factory.Storage().V1().StorageClasses().Lister(),
		Volumes: corelisters.NewPersistentVolumeLister(w.volumes.GetIndexer()),
		OnNode:  w.onNode,
		Pods:    w.pods.using,
		Report:  w.report,
		Live: Live{
			Claim:      claimNow(w.client),
			Snapshot:   snapshotNow(w.client),
			Attributes: attributesNow(w.client),
			Owner:      w.owner,
		},
	}
}

// onNode returns the PersistentVolumes with a node label value.
func (w *watches) onNode(label string) ([]*corev1.PersistentVolume, error) {
	found, err := w.volumes.OnNode(label)
	if err != nil {
		return nil, err
	}
	return slices.Collect(found), nil
}

// report returns the last report of a node, or nil.
func (w *watches) report(node string) *flexlvmv1.NodeStorage {
	object, there, err := w.storage.GetStore().GetByKey(node)
	if err != nil || !there {
		return nil
	}
	return object.(*flexlvmv1.NodeStorage)
}

// seen returns the caches that the controller of lost nodes needs.
func (w *watches) seen() nodeloss.Seen {
	return nodeloss.Seen{
		Nodes: w.listers().Nodes, Claims: w.listers().Claims,
		Bearing: func() []string { return w.volumes.GetIndexer().ListIndexFuncValues(controlplane.ByNode) },
		Volumes: w.volumes.OnNode,
		Synced: []cache.InformerSynced{
			w.factory.Core().V1().Nodes().Informer().HasSynced, w.volumes.HasSynced, w.claims.HasSynced,
		},
	}
}

func (w *watches) capacities(namespace string) storagelisters.CSIStorageCapacityNamespaceLister {
	return w.own.Storage().V1().CSIStorageCapacities().Lister().CSIStorageCapacities(namespace)
}

// addHandlers connects the watches to their consumers.
func (w *watches) addHandlers(p *publisher, pending *pendingClaims, grow *growth.Controller, guard *scaleDownGuard) error {
	for _, one := range []struct {
		of      cache.SharedIndexInformer
		handler cache.ResourceEventHandler
	}{
		{w.storage, handlerFuncs(func(s *flexlvmv1.NodeStorage) {
			p.ledger.Report(s)
			grow.Room(pv.NodeLabelValue(s.Name)) // even if no more can be promised, more may be free
		}, p.ledger.Forget)},
		{w.storage, guard.reportHandler()},
		{w.volumes, handlerFuncs(func(v *corev1.PersistentVolume) {
			p.ledger.Written(v)
			grow.SeeVolume(v)
			guard.enqueueForVolume(v)
		}, func(v *corev1.PersistentVolume) {
			p.ledger.Gone(v.Name)
			guard.enqueueForVolume(v)
		})},
		{w.factory.Core().V1().Nodes().Informer(), handlerFuncs(func(n *corev1.Node) {
			p.enqueueNode(n)
			guard.enqueueNode(n)
		}, p.enqueueNode)},
		{w.factory.Storage().V1().StorageClasses().Informer(), cache.FilteringResourceEventHandler{
			FilterFunc: offeringClass,
			Handler:    handlerFuncs(func(*storagev1.StorageClass) { p.enqueueAll() }, func(*storagev1.StorageClass) { p.enqueueAll() }),
		}},
		{w.own.Storage().V1().CSIStorageCapacities().Informer(), handlerFuncs(p.enqueueForCapacity, p.enqueueForCapacity)},
		{w.pods.informer, handlerFuncs(func(p *corev1.Pod) {
			if w.hasSynced() { // otherwise the event would report that no node has reported; the pod is handled again after podResync
				pending.handlePod(p)
			}
		}, func(*corev1.Pod) {})},
		{w.claims, handlerFuncs(grow.SeeClaim, grow.ClaimGone)},
	} {
		registration, err := one.of.AddEventHandler(one.handler)
		if err != nil {
			return err
		}
		w.synced = append(w.synced, registration.HasSynced)
	}
	return nil
}

func (p *publisher) enqueueNode(node *corev1.Node) {
	p.enqueue(pv.NodeLabelValue(node.Name))
	if group := node.Labels[pv.LabelNodeGroup]; group != "" {
		p.enqueue(groupKey + group)
	}
}

// enqueueForCapacity enqueues the node or group of an object that somebody else has changed, or that an
// earlier process has left.
func (p *publisher) enqueueForCapacity(c *storagev1.CSIStorageCapacity) {
	if group := c.Labels[pv.LabelNodeGroup]; group != "" {
		p.enqueue(groupKey + group)
		return
	}
	p.enqueue(c.Labels[pv.LabelNode])
}

// handlerFuncs returns an event handler that calls there for an existing object and gone for a deleted one.
func handlerFuncs[T any](there, gone func(*T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { there(obj.(*T)) },
		UpdateFunc: func(_, obj any) { there(obj.(*T)) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if object, ok := obj.(*T); ok {
				gone(object)
			}
		},
	}
}

// start starts the informers.
func (w *watches) start(ctx context.Context) {
	w.factory.Start(ctx.Done())
	w.own.Start(ctx.Done())
	go w.pods.informer.RunWithContext(ctx)
	go w.storage.RunWithContext(ctx)
}

// hasSynced reports whether all caches have synced.
func (w *watches) hasSynced() bool {
	return !slices.ContainsFunc(w.synced, func(synced cache.InformerSynced) bool { return !synced() })
}

// waitForSync waits until all caches have synced; false if ctx has ended.
func (w *watches) waitForSync(ctx context.Context) bool {
	late := time.AfterFunc(time.Minute, func() {
		klog.FromContext(ctx).Info("The API server has not shown everything yet, so nothing is provisioned; see whether the provisioner may list NodeStorages, PersistentVolumes, claims, classes, nodes, pods and its own CSIStorageCapacities")
	})
	defer late.Stop()
	return cache.WaitForCacheSync(ctx.Done(), w.synced...)
}

// eachReport calls do for every NodeStorage, read from the API server.
func eachReport(ctx context.Context, client *kube.Client, do func(*flexlvmv1.NodeStorage)) error {
	list := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.ResourceVersion = ""
		return client.WatchNodeStorages().ListWithContextFunc(ctx, o)
	})
	return list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		do(obj.(*flexlvmv1.NodeStorage))
		return nil
	})
}
