package nfs

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
)

const (
	// component is the source of events on PersistentVolumes.
	component = "flexlvm-nfs-provisioner"
	// drain is how long workers may take to finish after a shutdown.
	drain = 10 * time.Second
)

// Config configures the control side for NFS.
type Config struct {
	Client    kubernetes.Interface
	Exports   Exports
	Cluster   string        // UID of the kube-system namespace
	IOTimeout time.Duration // time limit of a server for one step
	Workers   int           // number of claims, and also of volumes, that are processed at the same time
	Metrics   *Metrics
}

// Work provisions until ctx ends, and then waits for the workers, but not forever: a server may hang.
// Only one process may work at a time.
func Work(ctx context.Context, config Config) error {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: config.Client.CoreV1().Events(corev1.NamespaceAll)})

	p := NewProvisioner(Parts{
		Exports: config.Exports, Cluster: config.Cluster, IOTimeout: config.IOTimeout,
		MaxWaiting: 2 * config.Workers, // a worker is never rejected while the server responds
		MaxLong:    config.Workers / 2,
		Events:     broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}),
		Volume: func(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
			return config.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		},
		EachVolume: func(ctx context.Context, do func(*corev1.PersistentVolume)) error {
			return controlplane.EachVolume(ctx, config.Client, do)
		},
		Refused: config.Metrics.refused, PutOff: config.Metrics.putOff, Now: time.Now,
	})
	config.Metrics.watch(p)

	seen := newCaches(config.Client)
	var busy sync.WaitGroup
	c := controller.NewProvisionController(ctx, config.Client, Name, p,
		append(controlplane.LibraryOptions(config.Workers, config.Metrics.library),
			controller.ClaimsInformer(seen.claims.ForLibrary()), controller.ClassesInformer(seen.classes),
			// All volumes, also bound ones: PersistentVolumes older than the finalizer get it.
			controller.VolumesInformer(seen.volumes),
			controller.FailedDeleteThreshold(0), // retry deletions forever
			// A PersistentVolume that somebody deletes by hand stays until its directory has been
			// disposed of: only the object refers to the directory.
			controller.AddFinalizer(true),
			// If the API server does not accept a PersistentVolume, its creation is retried forever:
			// the directory exists, and only the object refers to it.
			controller.CreateProvisionedPVLimiter(controlplane.RetryLimiter()),
		)...)
	c.ControllerWaitGroup(&busy)
	seen.factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), seen.claims.HasSynced, seen.volumes.HasSynced, seen.classes.HasSynced) {
		return nil // shutting down
	}
	c.Run(ctx)
	controlplane.WaitAtMost(&busy, drain)
	return nil
}

// caches hold the objects that the library needs. They contain the PersistentVolumes and claims of the
// whole cluster, so they are packed.
type caches struct {
	factory         informers.SharedInformerFactory
	claims, volumes controlplane.Packed
	classes         cache.SharedIndexInformer
}

func newCaches(client kubernetes.Interface) caches {
	factory := informers.NewSharedInformerFactoryWithOptions(client, controlplane.Resync, informers.WithTransform(controlplane.Pack))
	return caches{
		factory: factory,
		claims:  controlplane.Packed{SharedIndexInformer: factory.Core().V1().PersistentVolumeClaims().Informer()},
		volumes: controlplane.Packed{SharedIndexInformer: factory.Core().V1().PersistentVolumes().Informer()},
		classes: factory.Storage().V1().StorageClasses().Informer(),
	}
}
