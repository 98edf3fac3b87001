package dataset

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/fetch/protocol"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

const (
	workers         = 4 // VolumeManagers reconciled at the same time
	shutdownTimeout = 10 * time.Second
	// After an error, a VolumeManager is retried after firstRetry, with exponential backoff up to lastRetry.
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
	// A loader has askTimeout to report its progress, and all loaders of a VolumeManager have askAllTimeout in
	// each pass; a report longer than reportLength is ignored; at most asksAtOnce loaders of a volume are asked
	// at the same time. A user's pod may answer anything, or not at all, so these limits bound the time and the
	// memory that answers take.
	askTimeout    = time.Second
	askAllTimeout = 4 * askTimeout
	reportLength  = 64 << 10
	asksAtOnce    = 16
)

// Config configures the controller.
type Config struct {
	REST    *rest.Config
	Image   string // of the loader
	Cluster string // UID of the kube-system namespace
	// Namespace is where the provisioner publishes its CSIStorageCapacities.
	Namespace string
	// Door is the driver for StorageClasses that name none; empty: Flex.
	Door    pv.Door
	Nodes   corelisters.NodeLister
	Classes storagelisters.StorageClassLister
	// Report returns the last report of a node; nil if there is none. Without it, the volume groups of the nodes
	// are not known.
	Report func(node string) *flexlvmv1.NodeStorage
	Events record.EventRecorder
	// Metrics exposes the datasets; nil: no metrics.
	Metrics *Metrics
	// Shares are the NFS shares, as SERVER:/PATH, that VolumeManagers may use, including everything below them;
	// empty: any.
	Shares []string
	// Progress asks the loader at an address for its progress and returns nil if it does not answer. A final
	// that is not empty asks a mirror for a last upload, see protocol.FinalQuery. The default asks over HTTP.
	Progress func(ctx context.Context, podIP, final string) *protocol.Status
	// Pods calls each for every pod of a namespace, read from the API server. Pods may be large. After an
	// error, some pods may be missing.
	Pods func(ctx context.Context, namespace string, each func(*corev1.Pod)) error
	// Refused returns why a Job has no pod; empty if that is not known. The default reads the Job's events.
	Refused func(ctx context.Context, job *batchv1.Job) string
}

// Work reconciles VolumeManagers until ctx ends. Only one process may do so at a time.
func Work(ctx context.Context, c Config) error {
	if c.Progress == nil {
		c.Progress = askLoader
	}
	defer c.Metrics.clear()
	ctrl.SetLogger(klog.FromContext(ctx))
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		return fmt.Errorf("know the objects of Kubernetes: %w", err)
	}
	if err := flexlvmv1.AddToScheme(known); err != nil {
		return fmt.Errorf("know our own objects: %w", err)
	}
	rc := rest.CopyConfig(c.REST)
	rc.ContentType, rc.AcceptContentTypes = "", "" // flexlvm's own objects have no protobuf
	mgr, err := ctrl.NewManager(rc, ctrl.Options{
		Scheme: known, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Cache: cacheOptions(), GracefulShutdownTimeout: ptr.To(shutdownTimeout),
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	if err != nil {
		return fmt.Errorf("begin with VolumeManagers: %w", err)
	}
	r := &reconciler{
		Config: c, cached: mgr.GetCache(), live: mgr.GetAPIReader(), write: mgr.GetClient(), now: time.Now, startedAt: time.Now(),
		lists: podLists{gap: maxListGap}, podless: podLists{gap: maxPodlessGap},
	}
	if r.Refused == nil {
		r.Refused = refusalFromEvents(r.live)
	}
	if err := r.watch(mgr); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("carry out VolumeManagers: %w", err)
	}
	return nil
}

// cacheOptions keep objects that belong to no dataset out of the cache.
func cacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.PersistentVolumeClaim{}: {Label: withLabel(replica.LabelOwner)},
			&batchv1.Job{}:                  {Label: withLabel(replica.LabelOwner)},
			&corev1.Pod{}:                   {Label: withLabel(replica.LabelOwner), Transform: stripPod},
			&corev1.PersistentVolume{}:      {Label: withLabel(replica.LabelDataset)},
			&flexlvmv1.VolumeManager{}:      {Transform: stripManager},
		},
	}
}

// stripPod drops the fields of a loader's pod that this package does not use. Anybody may label a pod as a
// loader's.
func stripPod(obj any) (any, error) {
	pod, is := obj.(*corev1.Pod)
	if !is {
		return obj, nil
	}
	pod.ManagedFields = nil
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
	maps.DeleteFunc(pod.Annotations, func(key, _ string) bool { return key != replica.AnnotationOwner && key != replica.AnnotationVolumeID })
	return pod, nil
}

// stripManager drops the annotations of a VolumeManager that this package does not use. No write removes them from the
// API server: the status is written through its subresource, which ignores annotations, and all else in patches.
func stripManager(obj any) (any, error) {
	if manager, is := obj.(*flexlvmv1.VolumeManager); is {
		manager.ManagedFields = nil
		maps.DeleteFunc(manager.Annotations, func(key, _ string) bool { return key != replica.AnnotationRefresh && key != AnnotationRetry })
	}
	return obj, nil
}

func withLabel(label string) labels.Selector {
	requirement, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return labels.NewSelector().Add(*requirement)
}

func (r *reconciler) watch(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("volumemanager").
		// Changes of the status do not wake the controller: it writes the status itself.
		For(&flexlvmv1.VolumeManager{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&corev1.PersistentVolumeClaim{}).
		Owns(&batchv1.Job{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return requestsForOwner(o, o.GetNamespace())
		})).
		Watches(&corev1.PersistentVolume{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			if ref := o.(*corev1.PersistentVolume).Spec.ClaimRef; ref != nil {
				return requestsForOwner(o, ref.Namespace)
			}
			return nil
		})).
		Watches(&flexlvmv1.VolumeManager{}, handler.EnqueueRequestsFromMapFunc(r.requestsForReaders), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             controlplane.Jittered(workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("watch VolumeManagers: %w", err)
	}
	return nil
}

// requestsForOwner returns a request for the VolumeManager that an object names.
func requestsForOwner(o client.Object, namespace string) []reconcile.Request {
	name := o.GetAnnotations()[replica.AnnotationOwner]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

// askLoader asks a loader for its progress over HTTP.
func askLoader(ctx context.Context, podIP, final string) *protocol.Status {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	address := "http://" + net.JoinHostPort(podIP, strconv.Itoa(progressPort)) + protocol.ProgressPath
	if final != "" {
		address += "?" + url.Values{protocol.FinalQuery: {final}}.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil
	}
	response, err := loaders.Do(request)
	if err != nil {
		return nil
	}
	defer func() { _ = response.Body.Close() }() // the body was only read
	out := &protocol.Status{}
	if response.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(response.Body, reportLength)).Decode(out) != nil {
		return nil
	}
	truncateReport(out)
	return out
}

// truncateReport cuts the texts of a report to maxMessage bytes, and its notes to 16; no loader sends more.
func truncateReport(report *protocol.Status) {
	for _, text := range []*string{&report.State, &report.Message, &report.Checks, &report.Revision, &report.Index, &report.Contents, &report.ID, &report.Run, &report.Final} {
		*text = clip(*text)
	}
	report.Notes = slices.Clone(report.Notes[:min(len(report.Notes), 16)])
	for i := range report.Notes {
		report.Notes[i] = clip(report.Notes[i])
	}
}

// loaders is the client that asks loaders. It uses no proxy and follows no redirects: a user's pod may answer
// at the address.
var loaders = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}
