package provision

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/growth"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/nodeloss"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/staticvolume"
)

const (
	// component is the source of the events on claims and volumes.
	component = "flexlvm-provisioner"
	// provisionTimeout limits one attempt, which takes a few requests to the API server.
	provisionTimeout = 30 * time.Second
	// createTimeout limits one creation of a PersistentVolume, including client-go's own retries. By default
	// the API server gives up a request after the same time. See also ledger.ReservationTime.
	createTimeout = time.Minute
	// shutdownTimeout is how long workers may take to finish after a shutdown.
	shutdownTimeout = 15 * time.Second
)

// Config configures Work.
type Config struct {
	Client kubernetes.Interface
	// Capacities publishes capacities, and Loss releases the volumes of lost nodes, each with its own
	// rate limit.
	Capacities, Loss kubernetes.Interface
	// ListNodes lists the metadata of nodes.
	ListNodes func(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Storage   *kube.Client // for NodeStorage
	Cluster   string       // UID of the kube-system namespace
	Namespace string       // of the CSIStorageCapacity objects
	Metrics   *Metrics
	Workers   int // number of claims that are processed at the same time
	// Door is the door of classes that name none; empty: Flex.
	Door pv.Door
	// AvoidBusy lowers the published capacity of nodes with busy disks, so that the
	// scheduler prefers others.
	AvoidBusy bool
	// NodeGroups describe the offers of nodes that do not exist yet.
	NodeGroups []NodeGroup
	// NodeLossGrace is how long a lost node must have been missing from the API.
	NodeLossGrace time.Duration
	// Datasets, unless nil, runs concurrently, with the same watches, until ctx ends. If it fails, it is
	// called again.
	Datasets func(ctx context.Context, seen Listers, events record.EventRecorder) error
	// Snapshots, unless nil, runs concurrently, too. It reserves room in books.
	Snapshots func(ctx context.Context, seen Listers, books *ledger.Ledger) error
}

// Work provisions until ctx ends, and then waits for the workers, at most shutdownTimeout. Only one process may
// work at a time.
func Work(ctx context.Context, config Config) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: config.Client.CoreV1().Events(corev1.NamespaceAll)})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})

	w, err := newWatches(config)
	if err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	books, publish, grow := config.newLedger(w, events)
	guard := newScaleDownGuard(config.Capacities, w.listers(), w.storage.GetStore(), publish.nodeName)
	discovered, err := config.discovered(w, events)
	if err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	pending := newPendingClaims(books, w.listers(), events, config.Metrics)
	pending.door = config.Door
	if err := w.addHandlers(publish, pending, grow, guard); err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}

	rescheduled := newRescheduleGuard()
	claims, err := rescheduled.claims(w.claims.ForLibrary())
	if err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	provisioner := NewProvisioner(Parts{
		Events: events, Cluster: config.Cluster, Door: config.Door, Ledger: books, Listers: w.listers(), Refused: config.Metrics.Refused, rescheduled: rescheduled,
	})
	local, err := newLocalVolumes(config, provisioner, w)
	if err != nil {
		return fmt.Errorf("watch the API server: %w", err)
	}
	var busy sync.WaitGroup
	c := w.library(ctx, config, provisioner, claims)
	c.ControllerWaitGroup(&busy)
	w.start(ctx)
	if !w.waitForSync(ctx) || !reserveExisting(ctx, config, books) {
		return nil // shutting down
	}
	loss := config.nodeLoss(events, w.seen())
	for _, run := range []func(context.Context){publish.run, grow.Run, guard.run, discovered.Run, local.run, loss.Run} {
		busy.Go(func() { run(ctx) })
	}
	for _, loop := range config.backgroundLoops(w.listers(), events, books) {
		busy.Go(func() { loop.keepRunning(ctx) })
	}
	c.Run(ctx)
	controlplane.WaitAtMost(&busy, shutdownTimeout)
	return nil
}

// createOnce is the library's backoff between attempts to create a PersistentVolume: there is one attempt. The
// library would sleep in its worker, and claims whose PersistentVolumes the API server refuses, for example by a
// policy for their namespace, would hold up all others. The queue of claims retries it with its own backoff.
//
// The room stays reserved meanwhile, because the API server may have stored an object although its response was
// lost. The library calls Provisioner.Delete for that object, which does nothing.
var createOnce = wait.Backoff{Steps: 1}

// library returns the library's controller of claims and PersistentVolumes, with these watches. The ledger records each
// PersistentVolume as soon as it exists: its reservation would expire if the watch hung.
func (w *watches) library(ctx context.Context, config Config, provisioner *Provisioner, claims cache.SharedIndexInformer) *controller.ProvisionController {
	return controller.NewProvisionController(ctx, controlplane.WithCreateTimeout(config.Client, createTimeout, provisioner.Ledger.Created), pv.Provisioner, provisioner,
		append(controlplane.LibraryOptions(config.Workers, config.Metrics.library),
			controller.ClaimsInformer(claims),
			controller.VolumesInformer(w.volumes.ForLibrary()),
			controller.ClassesInformer(w.factory.Storage().V1().StorageClasses().Informer()),
			controller.ProvisionTimeout(provisionTimeout),
			controller.CreateProvisionedPVBackoff(createOnce),
		)...)
}

// newLedger returns an empty ledger, with the publisher and the growth controller that it notifies when
// a node's room may have changed.
func (c Config) newLedger(w *watches, events record.EventRecorder) (books *ledger.Ledger, publish *publisher, grow *growth.Controller) {
	books = ledger.New(time.Now, func(node string) {
		publish.enqueue(node)
		grow.Room(node)
	})
	return books, c.newPublisher(w, books), c.newGrowth(books, w.listers(), events)
}

// newPublisher returns the publisher of capacities.
func (c Config) newPublisher(w *watches, books *ledger.Ledger) *publisher {
	return &publisher{
		client: c.Capacities, namespace: c.Namespace, ledger: books, listers: w.listers(), capacities: w.capacities(c.Namespace),
		queue:   workqueue.NewTypedRateLimitingQueue(controlplane.RetryLimiter()),
		metrics: c.Metrics, avoidBusy: c.AvoidBusy, groups: c.NodeGroups, door: c.Door,
		report: c.Storage.NodeStorage,
	}
}

// newGrowth returns the controller that grows claims.
func (c Config) newGrowth(books *ledger.Ledger, seen Listers, events record.EventRecorder) *growth.Controller {
	return growth.New(growth.Config{
		Client: c.Client, Events: events, Ledger: books, Now: time.Now,
		Claims: seen.Claims, Volumes: seen.Volumes, Claim: seen.Live.Claim, Metrics: c.Metrics.growth,
	})
}

// discovered returns the controller that creates PersistentVolumes for discovered volumes.
func (c Config) discovered(w *watches, events record.EventRecorder) (*staticvolume.Controller, error) {
	return staticvolume.New(staticvolume.Config{
		Client: c.Client, API: c.Storage, Events: events, Classes: w.listers().Classes, Nodes: w.listers().Nodes, NodeStorages: w.storage, Now: time.Now,
	})
}

// nodeLoss returns the controller that detects lost nodes.
func (c Config) nodeLoss(events record.EventRecorder, seen nodeloss.Seen) *nodeloss.Controller {
	return nodeloss.New(nodeloss.Config{
		Client: c.Loss, ListNodes: c.ListNodes, EachPod: c.Storage.PodsOfNamespace, Events: events, Cluster: c.Cluster, Metrics: c.Metrics.nodeLoss, Grace: c.NodeLossGrace, Now: time.Now,
	}, seen)
}

// reserveExisting reserves room for every existing PersistentVolume. The watches may have started from a state
// that is older than the last leader's writes, and that room must not be promised again. The watch of
// the reports may be old as well, and then count the space of deleted PersistentVolumes as allocatable.
func reserveExisting(ctx context.Context, config Config, books *ledger.Ledger) bool {
	err := wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(ctx context.Context) (bool, error) {
		err := controlplane.EachVolume(ctx, config.Client, books.Inherited)
		if err == nil {
			err = eachReport(ctx, config.Storage, func(s *flexlvmv1.NodeStorage) { books.Confirm(s, 0) })
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read what is promised already; nothing is provisioned before that")
		}
		return err == nil, nil
	})
	return err == nil
}

// offeringClass selects flexlvm's classes.
func offeringClass(obj any) bool {
	class, ok := obj.(*storagev1.StorageClass)
	return ok && class.Provisioner == pv.Provisioner
}
