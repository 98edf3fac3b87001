package provision

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/pv"
)

const (
	// component is who the events on claims and volumes are from.
	component = "flexlvm-provisioner"
	// resync is how often every claim and volume is looked at without a change.
	resync = 15 * time.Minute
	// A claim that failed is tried again after firstRetry, doubled up to lastRetry.
	// A Refusal is only looked up in memory until refusalRetry has passed.
	firstRetry   = 500 * time.Millisecond
	lastRetry    = time.Minute
	refusalRetry = 5 * time.Minute
	// provisionTimeout bounds one attempt, which is one question to the API server.
	provisionTimeout = 30 * time.Second
	// drain is how long a worker may take to finish what it has begun.
	drain = 15 * time.Second
)

// Work provisions until ctx ends, and returns when every worker has finished
// what it had begun. Only one process may work at a time. A node that is missing
// for nodeLossGrace is lost.
func Work(ctx context.Context, client kubernetes.Interface, cluster string, metrics *Metrics, workers int, nodeLossGrace time.Duration) {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events(corev1.NamespaceAll)})
	events := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})

	factory := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(withoutManagedFields))
	var busy sync.WaitGroup
	c := controller.NewProvisionController(ctx, client, pv.Provisioner,
		NewProvisioner(client, events, cluster, metrics.Refused),
		controller.ClaimsInformer(factory.Core().V1().PersistentVolumeClaims().Informer()),
		controller.VolumesInformer(factory.Core().V1().PersistentVolumes().Informer()),
		controller.ClassesInformer(factory.Storage().V1().StorageClasses().Informer()),
		controller.LeaderElection(false), // Lead does it, and gives the lease back
		controller.MetricsInstance(metrics.library),
		controller.Threadiness(workers),
		controller.ResyncPeriod(resync),
		controller.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		controller.FailedProvisionThreshold(0), // never give a claim up
		controller.RetryIntervalMax(refusalRetry),
		controller.ProvisionTimeout(provisionTimeout),
		controller.CreateProvisionedPVBackoff(wait.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Steps: 5}),
	)
	c.ControllerWaitGroup(&busy)
	loss := newNodeLoss(lossConfig{client: client, events: events, cluster: cluster, metrics: metrics, grace: nodeLossGrace, now: time.Now}, factory)
	busy.Go(func() { loss.run(ctx) })
	factory.Start(ctx.Done())
	c.Run(ctx)
	waitAtMost(&busy, drain)
}

// withoutManagedFields halves what an object takes in the caches.
func withoutManagedFields(obj any) (any, error) {
	if accessor, err := meta.Accessor(obj); err == nil {
		accessor.SetManagedFields(nil)
	}
	return obj, nil
}

func waitAtMost(group *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}
