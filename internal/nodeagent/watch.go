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

// watches follow what the API says of one node: its PersistentVolumes, the pods
// on it and its NodeStorage. They tell when it is time for a round. Nothing is
// removed on their word alone: a watch that hangs looks like one where nothing
// happens.
type watches struct {
	volumes cache.SharedIndexInformer
	pods    cache.SharedIndexInformer
	storage cache.SharedIndexInformer
	// trouble: the PersistentVolumes could not be followed since the last look.
	trouble atomic.Bool
	// revisions are those of the PersistentVolumes that were seen, also in lists.
	revisions revisions
}

// newWatches makes the watches; kick is called for every change that matters, and appeared for
// every PersistentVolume that was not there when they began. Neither may block.
func newWatches(ctx context.Context, api *kube.Client, node string, kick func(), appeared func(*corev1.PersistentVolume)) (*watches, error) {
	w := &watches{}
	w.volumes = cache.NewSharedIndexInformer(w.noting(api.WatchVolumes(node)), &corev1.PersistentVolume{}, 0, cache.Indexers{})
	w.pods = cache.NewSharedIndexInformer(api.WatchPods(node), &corev1.Pod{}, 0, cache.Indexers{})
	w.storage = cache.NewSharedIndexInformer(api.WatchNodeStorage(node), &flexlvmv1.NodeStorage{}, 0, cache.Indexers{})
	log := klog.FromContext(ctx)
	for _, informer := range []struct {
		of        cache.SharedIndexInformer
		what      string
		transform cache.TransformFunc
		handler   cache.ResourceEventHandler
	}{
		{w.volumes, "PersistentVolumes", leanVolume, volumeHandler(kick, appeared)},
		{w.pods, "pods", leanPod, w.podHandler(kick)},
		{w.storage, "NodeStorage", leanStorage, storageHandler(kick)},
	} {
		if err := informer.of.SetTransform(informer.transform); err != nil {
			return nil, err
		}
		// The library would log every try of every watch while the API server is away.
		err := informer.of.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			log.V(1).Info("A watch was cut off and begins again", "of", informer.what, "err", err.Error())
		})
		if err != nil {
			return nil, err
		}
		if _, err := informer.of.AddEventHandler(informer.handler); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// noting is a ListWatch that notes what fails: the library tells its error handler
// nothing of an API server that refuses the connection, and tries for ever.
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

// run follows until ctx ends.
func (w *watches) run(ctx context.Context) {
	var all sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{w.volumes, w.pods, w.storage} {
		all.Go(func() { informer.RunWithContext(ctx) })
	}
	all.Wait()
}

// persistentVolumes gives what the watch knows; false where it knows nothing yet.
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

// volumesAt is persistentVolumes with a resourceVersion of an earlier moment than the
// objects: what has changed since that may be in them already, and nothing else is.
func (w *watches) volumesAt() (revision string, known []*corev1.PersistentVolume, synced bool) {
	revision = w.volumes.GetStore().LastStoreSyncResourceVersion()
	known, synced = w.persistentVolumes()
	w.revisions.note(revision)
	return revision, known, synced
}

// nodeStorage gives the node's own object; nil where there is none, and false
// where the watch does not know.
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

// volumeHandler kicks where a PersistentVolume says something else than before.
// That it was written to alone is no reason for a round.
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

// storageHandler kicks when somebody asks the node for something, or its report is gone, or is an
// earlier one, as after a restore from a backup: others go by that until it is written again.
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

// podHandler kicks when a pod that uses a flexlvm volume comes to the node or
// leaves it: a first mount wants room, and a device that was open may be closed.
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
			look(is) // it may have ended
		}
	}}
}

// users are the pods of the node that have not ended, by the claims that they name;
// false where the watch does not know.
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

// starting are the pods of the node that use a flexlvm volume and do not run yet.
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

// leanVolume keeps of a PersistentVolume what persistentvolume.Parse and kube.LetGo read.
func leanVolume(o any) (any, error) {
	if volume, ok := o.(*corev1.PersistentVolume); ok {
		volume.ManagedFields = nil
		volume.Spec.NodeAffinity = nil
		maps.DeleteFunc(volume.Annotations, func(name, _ string) bool { return !persistentvolume.Reads(name) })
	}
	return o, nil
}

// leanPod keeps of a pod its name, whether it has ended, and the claims that it uses.
func leanPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	lean := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	lean.Status.Phase = pod.Status.Phase
	for _, v := range pod.Spec.Volumes {
		name := kubeobject.ClaimName(pod, v)
		if name == "" {
			continue
		}
		lean.Spec.Volumes = append(lean.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	return lean, nil
}

func leanStorage(o any) (any, error) {
	if storage, ok := o.(*flexlvmv1.NodeStorage); ok {
		storage.ManagedFields = nil
	}
	return o, nil
}
