package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/overview"
	"github.com/flexlvm/flexlvm/internal/page"
)

// A clusterWatch watches the objects that the page shows.
type clusterWatch struct {
	version  atomic.Uint64
	storages *kindWatch
	volumes  *kindWatch
	managers *kindWatch
}

// watchCluster starts the watches, which run until the context is done. Kinds that the user may not read are
// missing, and Snapshot reports them.
func watchCluster(ctx context.Context, c client.WithWatch) *clusterWatch {
	w := &clusterWatch{}
	changed := func() { w.version.Add(1) }
	w.storages = watchKind(ctx, c, "NodeStorages", &flexlvmv1.NodeStorage{}, func() client.ObjectList { return &flexlvmv1.NodeStorageList{} }, changed)
	w.volumes = watchKind(ctx, c, "PersistentVolumes", &corev1.PersistentVolume{}, func() client.ObjectList { return &corev1.PersistentVolumeList{} }, changed, client.HasLabels{labelNode})
	w.managers = watchKind(ctx, c, "VolumeManagers", &flexlvmv1.VolumeManager{}, func() client.ObjectList { return &flexlvmv1.VolumeManagerList{} }, changed)
	return w
}

// Version returns the version of what Snapshot returns.
func (w *clusterWatch) Version() uint64 { return w.version.Load() }

// Snapshot returns the current objects.
func (w *clusterWatch) Snapshot() page.Snapshot {
	out := page.Snapshot{
		Objects:  overview.Objects{Storages: known[flexlvmv1.NodeStorage](w.storages), Volumes: known[corev1.PersistentVolume](w.volumes)},
		Managers: known[flexlvmv1.VolumeManager](w.managers),
	}
	for _, k := range []*kindWatch{w.storages, w.volumes, w.managers} {
		if err := k.trouble(); err != nil {
			out.Lacks = append(out.Lacks, fmt.Sprintf("%s cannot be read: %v", k.kind, err))
		} else if !k.informer.HasSynced() {
			out.Reading = true
		}
	}
	return out
}

// A kindWatch watches the objects of one kind.
type kindWatch struct {
	kind     string
	informer cache.SharedIndexInformer
	changed  func()

	mu  sync.Mutex
	err error // of the last request
}

func watchKind(ctx context.Context, c client.WithWatch, kind string, object client.Object, newList func() client.ObjectList, changed func(), options ...client.ListOption) *kindWatch {
	k := &kindWatch{kind: kind, changed: changed}
	ask := func(o metav1.ListOptions) []client.ListOption {
		return append([]client.ListOption{&client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue}}, options...)
	}
	k.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			all := newList()
			err := c.List(ctx, all, ask(o)...)
			k.note(err)
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.Watch(ctx, newList(), ask(o)...)
			k.note(err)
			return w, err
		},
	}, c), object, 0, nil)
	// These calls fail only once the informer runs, which is started below.
	_ = k.informer.SetTransform(func(o any) (any, error) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil) // they are about half of an object's size
		}
		return o, nil
	})
	_ = k.informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if !errors.Is(err, io.EOF) && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // every watch ends regularly with these
			k.note(err)
		}
	})
	_, _ = k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() }, UpdateFunc: func(_, _ any) { changed() }, DeleteFunc: func(any) { changed() },
	})
	go k.informer.RunWithContext(ctx)
	go func() { // a kind without objects has no events that show that it was read
		if cache.WaitForCacheSync(ctx.Done(), k.informer.HasSynced) {
			changed()
		}
	}()
	return k
}

// note records the result of a request.
func (k *kindWatch) note(err error) {
	k.mu.Lock()
	differs := (err == nil) != (k.err == nil)
	k.err = err
	k.mu.Unlock()
	if differs {
		k.changed()
	}
}

func (k *kindWatch) trouble() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// known returns shallow copies of the current objects.
func known[T any](k *kindWatch) []T {
	stored := k.informer.GetStore().List()
	out := make([]T, 0, len(stored))
	for _, o := range stored {
		if object, is := o.(*T); is {
			out = append(out, *object)
		}
	}
	return out
}
