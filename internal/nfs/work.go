package nfs

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const (
	// component is who the events on PersistentVolumes are from.
	component = "flexlvm-nfs-provisioner"
	// resync is how often every claim and volume is looked at without a change.
	resync = 15 * time.Minute
	// What failed is tried again after firstRetry, doubled up to lastRetry. A refusal
	// is only looked up in memory until refusalRetry has passed.
	firstRetry   = 500 * time.Millisecond
	lastRetry    = time.Minute
	refusalRetry = 5 * time.Minute
	// drain is how long a worker may take to finish what it has begun.
	drain = 10 * time.Second
)

// Config is what the control side for NFS works with.
type Config struct {
	Client   kubernetes.Interface
	Exports  Exports
	Patience time.Duration // how long a server may take for one step
	Workers  int           // claims worked on at the same time, and as many volumes
	Metrics  *Metrics
}

// Work provisions until ctx ends, and returns when every worker has finished what
// it had begun, or a server keeps one from it. Only one process may work at a time.
func Work(ctx context.Context, config Config) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: config.Client.CoreV1().Events(corev1.NamespaceAll)})

	p := NewProvisioner(Parts{
		Exports: config.Exports, Patience: config.Patience,
		MostWaiting: 2 * config.Workers, // no healthy server ever turns a worker away
		Events:      broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}),
		Volume: func(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
			return config.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		},
		Refused: config.Metrics.refused, Now: time.Now,
	})
	config.Metrics.watch(p)

	factory := informers.NewSharedInformerFactoryWithOptions(config.Client, resync, informers.WithTransform(lean))
	claims, volumes := factory.Core().V1().PersistentVolumeClaims().Informer(), factory.Core().V1().PersistentVolumes().Informer()
	classes := factory.Storage().V1().StorageClasses().Informer()
	var busy sync.WaitGroup
	c := controller.NewProvisionController(ctx, config.Client, Name, p,
		controller.ClaimsInformer(claims), controller.VolumesInformer(volumes), controller.ClassesInformer(classes),
		controller.LeaderElection(false), // the caller does it, and gives the lease back
		controller.MetricsInstance(config.Metrics.library),
		controller.Threadiness(config.Workers),
		controller.ResyncPeriod(resync),
		controller.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
		controller.FailedProvisionThreshold(0), // never give a claim up,
		controller.FailedDeleteThreshold(0),    // nor a volume
		controller.RetryIntervalMax(refusalRetry),
		// A PersistentVolume that the API server does not take now is offered again and
		// again; the directory is there, and the object alone leads to it.
		controller.CreateProvisionedPVLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)),
	)
	c.ControllerWaitGroup(&busy)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), claims.HasSynced, volumes.HasSynced, classes.HasSynced) {
		return nil // told to end
	}
	c.Run(ctx)
	waitAtMost(&busy, drain)
	return nil
}

// lean leaves out of the caches what nobody here looks at.
func lean(obj any) (any, error) {
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
