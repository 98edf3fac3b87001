package controlplane

import (
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// Pack transforms objects as Transform does, and packs most PersistentVolumes and claims. They must be
// read through a Packed informer.
func Pack(obj any) (any, error) {
	if _, is := obj.(packed); is {
		return obj, nil
	}
	obj, err := Transform(obj)
	if err != nil {
		return nil, err
	}
	switch o := obj.(type) {
	case *corev1.PersistentVolumeClaim:
		if o.Spec.VolumeName == "" {
			return o, nil // the library writes to these
		}
		return packClaim(o)
	case *corev1.PersistentVolume:
		return packVolume(o)
	}
	return obj, nil
}

// Packed is an informer whose transform is Pack. It returns unpacked objects.
type Packed struct{ cache.SharedIndexInformer }

// AddEventHandler adds a handler, which receives unpacked objects.
func (i Packed) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(unpacking{h})
}

// AddEventHandlerWithOptions adds a handler, which receives unpacked objects.
func (i Packed) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(unpacking{h}, o)
}

// AddEventHandlerWithResyncPeriod adds a handler, which receives unpacked objects.
func (i Packed) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(unpacking{h}, period)
}

// GetStore returns a store of unpacked objects.
func (i Packed) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer returns an indexer of unpacked objects.
func (i Packed) GetIndexer() cache.Indexer {
	return unpackingIndexer{i.SharedIndexInformer.GetIndexer()}
}

// unpacking is a handler that unpacks objects for another handler.
type unpacking struct{ to cache.ResourceEventHandler }

func (u unpacking) OnAdd(obj any, initial bool) { u.to.OnAdd(unpack(obj), initial) }
func (u unpacking) OnDelete(obj any)            { u.to.OnDelete(unpack(obj)) }

func (u unpacking) OnUpdate(before, after any) {
	now := unpack(after)
	if before == after { // a resync: the object has not changed
		u.to.OnUpdate(now, now)
		return
	}
	u.to.OnUpdate(unpack(before), now)
}

type unpackingIndexer struct{ cache.Indexer }

func (u unpackingIndexer) Get(obj any) (any, bool, error) {
	out, there, err := u.Indexer.Get(obj)
	return unpack(out), there, err
}

func (u unpackingIndexer) GetByKey(key string) (any, bool, error) {
	out, there, err := u.Indexer.GetByKey(key)
	return unpack(out), there, err
}

func (u unpackingIndexer) List() []any { return unpackAll(u.Indexer.List()) }

func (u unpackingIndexer) Index(name string, obj any) ([]any, error) {
	out, err := u.Indexer.Index(name, obj)
	return unpackAll(out), err
}

func (u unpackingIndexer) ByIndex(name, value string) ([]any, error) {
	out, err := u.Indexer.ByIndex(name, value)
	return unpackAll(out), err
}

func unpackAll(objects []any) []any {
	out := make([]any, len(objects))
	for i, obj := range objects {
		out[i] = unpack(obj)
	}
	return out
}

// NodeLabel returns the node label value (pv.NodeLabelValue) of a PersistentVolume that flexlvm has
// created, including those of discovered volumes; empty for others.
func NodeLabel(volume *corev1.PersistentVolume) string {
	_, node := nodeLabel(volume)
	return node
}

func nodeLabel(volume *corev1.PersistentVolume) (label, node string) {
	for _, label := range []string{pv.LabelNode, flexlvmv1.LabelDiscoveredOn} {
		if node := volume.Labels[label]; node != "" {
			return label, node
		}
	}
	return "", ""
}

// ByNode is the index of PersistentVolumes by their NodeLabel.
const ByNode = "node"

// NodeIndex returns the index ByNode.
func NodeIndex() cache.Indexers {
	return cache.Indexers{ByNode: func(obj any) ([]string, error) {
		node := ""
		switch o := obj.(type) {
		case *packedVolume:
			node = o.common.Value().node
		case *corev1.PersistentVolume:
			node = NodeLabel(o)
		}
		if node == "" {
			return nil, nil
		}
		return []string{node}, nil
	}}
}

// OnNode returns the PersistentVolumes with this NodeLabel. It needs the index ByNode, and unpacks only
// the objects that the caller iterates over.
func (i Packed) OnNode(label string) (iter.Seq[*corev1.PersistentVolume], error) {
	found, err := i.SharedIndexInformer.GetIndexer().ByIndex(ByNode, label)
	return func(yield func(*corev1.PersistentVolume) bool) {
		for _, obj := range found {
			if !yield(unpack(obj).(*corev1.PersistentVolume)) {
				return
			}
		}
	}, err
}

// ForLibrary returns the informer for the library: it sends events only for claims without a volume and
// for PersistentVolumes that are released or failed, as the library ignores all others, and indexes
// only those.
func (i Packed) ForLibrary() cache.SharedIndexInformer { return forLibrary{i} }

type forLibrary struct{ Packed }

func (i forLibrary) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

func (i forLibrary) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(cache.FilteringResourceEventHandler{FilterFunc: needsProcessing, Handler: unpacking{h}}, o)
}

func (i forLibrary) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &period})
}

func (i forLibrary) AddIndexers(indexers cache.Indexers) error {
	out := make(cache.Indexers, len(indexers))
	for name, index := range indexers {
		out[name] = func(obj any) ([]string, error) {
			if !needsProcessing(obj) {
				return nil, nil
			}
			return index(unpack(obj))
		}
	}
	return i.SharedIndexInformer.AddIndexers(out)
}

// needsProcessing reports whether the library may have to act on a stored object.
func needsProcessing(obj any) bool {
	if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = gone.Obj
	}
	switch o := obj.(type) {
	case *packedClaim:
		return false
	case *packedVolume:
		return o.common.Value().ending
	}
	return true
}
