package nodeagent

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/kube"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// watches follow the API objects of one node: its PersistentVolumes, its pods and its NodeStorage. They trigger
// rounds. No volume is removed because of them alone: a hung watch looks like one without changes.
type watches struct {
	volumes cache.SharedIndexInformer
	pods    cache.SharedIndexInformer
	storage cache.SharedIndexInformer
	// trouble: a list or watch of the PersistentVolumes has failed since the last check.
	trouble atomic.Bool
	// revisions has the resourceVersions of PersistentVolumes that were seen, including those of lists.
	revisions revisions
}

// newWatches returns the watches. They call kick for every relevant change, and appeared for every
// PersistentVolume that is added after the initial list. Neither may block.
func newWatches(ctx context.Context, api *kube.Client, node string, kick func(), appeared func(*corev1.PersistentVolume)) (*watches, error) {
	w := &watches{}
	w.volumes = cache.NewSharedIndexInformer(w.noting(api.WatchVolumes(node)), &corev1.PersistentVolume{}, 0, cache.Indexers{})
	w.pods = cache.NewSharedIndexInformer(api.WatchPods(node), &corev1.Pod{}, 0, cache.Indexers{})
	w.storage = cache.NewSharedIndexInformer(api.WatchNodeStorage(node), &flexlvmv1.NodeStorage{}, 0, cache.Indexers{})
	for _, informer := range []struct {
		of        cache.SharedIndexInformer
		what      string
		transform cache.TransformFunc
		handler   cache.ResourceEventHandler
	}{
		{w.volumes, "PersistentVolumes", stripVolume, volumeHandler(kick, appeared)},
		{w.pods, "pods", stripPod, w.podHandler(kick)},
		{w.storage, "NodeStorage", stripNodeStorage, storageHandler(kick)},
	} {
		if err := informer.of.SetTransform(informer.transform); err != nil {
			return nil, err
		}
		if err := logInterruptions(ctx, informer.of, informer.what); err != nil {
			return nil, err
		}
		if _, err := informer.of.AddEventHandler(informer.handler); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// logInterruptions sets the verbosity at which interruptions of a watch are logged: by default, client-go logs every
// attempt while the API server is away.
func logInterruptions(ctx context.Context, informer cache.SharedIndexInformer, of string) error {
	log := klog.FromContext(ctx)
	return informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		log.V(1).Info("A watch was interrupted and starts again", "of", of, "err", err.Error())
	})
}

// noting wraps a ListWatch to record failures, because client-go does not call its error handler when the API
// server refuses the connection, and retries forever.
func (w *watches) noting(of *cache.ListWatch) *cache.ListWatch {
	note := func(err error) {
		if err != nil {
			w.trouble.Store(true)
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := of.ListWithContext(ctx, o)
			note(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			stream, err := of.WatchWithContext(ctx, o)
			note(err)
			return stream, err
		},
		DisableChunking: of.DisableChunking,
	}
}

// run runs the informers until ctx ends.
func (w *watches) run(ctx context.Context) {
	var all sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{w.volumes, w.pods, w.storage} {
		all.Go(func() { informer.RunWithContext(ctx) })
	}
	all.Wait()
}

// persistentVolumes returns the cached objects; false if the cache has not synced.
func (w *watches) persistentVolumes() ([]*corev1.PersistentVolume, bool) {
	if !w.volumes.HasSynced() {
		return nil, false
	}
	stored := w.volumes.GetStore().List()
	out := make([]*corev1.PersistentVolume, 0, len(stored))
	for _, o := range stored {
		out = append(out, o.(*corev1.PersistentVolume))
	}
	return out, true
}

// volumesAt is persistentVolumes with a resourceVersion that is not newer than the objects: later changes may
// be in them already, and nothing else is.
func (w *watches) volumesAt() (revision string, known []*corev1.PersistentVolume, synced bool) {
	revision = w.volumes.GetStore().LastStoreSyncResourceVersion()
	known, synced = w.persistentVolumes()
	w.revisions.note(revision)
	return revision, known, synced
}

// nodeStorage returns this node's NodeStorage; nil if there is none, and false if the cache has not synced.
func (w *watches) nodeStorage(name string) (*flexlvmv1.NodeStorage, bool) {
	if !w.storage.HasSynced() {
		return nil, false
	}
	o, there, err := w.storage.GetStore().GetByKey(name)
	if err != nil || !there {
		return nil, err == nil
	}
	return o.(*flexlvmv1.NodeStorage), true
}

// volumeHandler calls kick if a PersistentVolume has changed in a relevant field. Other writes trigger no
// round.
func volumeHandler(kick func(), appeared func(*corev1.PersistentVolume)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, atFirst bool) {
			if !atFirst {
				appeared(o.(*corev1.PersistentVolume))
			}
			kick()
		},
		DeleteFunc: func(any) { kick() },
		UpdateFunc: func(was, is any) {
			before, err := persistentvolume.Parse(was.(*corev1.PersistentVolume))
			after, err2 := persistentvolume.Parse(is.(*corev1.PersistentVolume))
			if err != nil || err2 != nil || before != after {
				kick()
			}
		},
	}
}

// storageHandler calls kick when a user requests something of the node, and when the report is deleted or
// replaced by an older one, as after a restore from a backup: readers rely on it until it is written again.
func storageHandler(kick func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(was, is any) {
			before, after := was.(*flexlvmv1.NodeStorage), is.(*flexlvmv1.NodeStorage)
			if !equality.Semantic.DeepEqual(before.Spec, after.Spec) || after.Status.ObservedTime.Before(&before.Status.ObservedTime) {
				kick()
			}
		},
		DeleteFunc: func(any) { kick() },
	}
}

// podHandler calls kick when a pod that uses a flexlvm volume arrives on or leaves the node: a first mount
// needs room, and an open device may have been closed.
func (w *watches) podHandler(kick func()) cache.ResourceEventHandler {
	look := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if pod, ok := o.(*corev1.Pod); ok && w.uses(pod) {
			kick()
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: look, DeleteFunc: look, UpdateFunc: func(was, is any) {
		if was.(*corev1.Pod).Status.Phase != is.(*corev1.Pod).Status.Phase {
			look(is) // the pod may have ended
		}
	}}
}

// users returns the pods of the node that have not ended, by the claims that they name; false if the cache has
// not synced.
func (w *watches) users() (map[eviction.ClaimKey]string, bool) {
	users := map[eviction.ClaimKey]string{}
	if !w.pods.HasSynced() {
		return users, false
	}
	for _, o := range w.pods.GetStore().List() {
		addUser(users, o.(*corev1.Pod))
	}
	return users, true
}

// starting returns the pods of the node that use a flexlvm volume and do not run yet.
func (w *watches) starting() (out []types.UID) {
	for _, o := range w.pods.GetStore().List() {
		if pod := o.(*corev1.Pod); pod.Status.Phase == corev1.PodPending && w.uses(pod) {
			out = append(out, pod.UID)
		}
	}
	return out
}

func (w *watches) uses(pod *corev1.Pod) bool {
	if len(pod.Spec.Volumes) == 0 {
		return false
	}
	claims := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		claims[v.PersistentVolumeClaim.ClaimName] = true
	}
	for _, o := range w.volumes.GetStore().List() {
		volume := o.(*corev1.PersistentVolume)
		ref := volume.Spec.ClaimRef
		if ref != nil && ref.Namespace == pod.Namespace && (claims[ref.Name] || claims[volume.Annotations[replica.AnnotationReaders]]) {
			return true
		}
	}
	return false
}

// stripVolume strips a PersistentVolume of fields that persistentvolume.Parse and kube.DeleteReleased do not read.
func stripVolume(o any) (any, error) {
	if volume, ok := o.(*corev1.PersistentVolume); ok {
		volume.ManagedFields = nil
		volume.Spec.NodeAffinity = nil
		maps.DeleteFunc(volume.Annotations, func(name, _ string) bool { return !persistentvolume.Reads(name) })
	}
	return o, nil
}

// stripPod strips a pod to its name, its phase, and the claims that it uses.
func stripPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	stripped := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	stripped.Status.Phase = pod.Status.Phase
	for _, v := range pod.Spec.Volumes {
		name := kubeobject.ClaimName(pod, v)
		if name == "" {
			continue
		}
		stripped.Spec.Volumes = append(stripped.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	return stripped, nil
}

func stripNodeStorage(o any) (any, error) {
	if storage, ok := o.(*flexlvmv1.NodeStorage); ok {
		storage.ManagedFields = nil
	}
	return o, nil
}
