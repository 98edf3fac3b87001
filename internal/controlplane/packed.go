package controlplane

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// packed is a PersistentVolume, or a claim that has its volume, as a cache stores it: what it
// alone has, and the rest as protobuf, kept once for all that have the same, as most volumes of
// one class and size do. A large cluster has hundreds of thousands of both, and as structs with
// maps each takes several kilobytes.
type packed struct {
	namespace, name string
	uid             types.UID
	version         string
	claim           bool
	ending          bool   // a PersistentVolume that is released, or has failed to be reclaimed
	node            string // label of a PersistentVolume; empty for others
	hostname        string // the only one that a PersistentVolume may be on; empty where rest tells
	of              bound
	rest            unique.Handle[string]
}

// bound is what an object is bound to: the claim of a PersistentVolume, by all that caches
// keep of it, and the PersistentVolume of a claim, by its name.
type bound struct {
	namespace, name string
	uid             types.UID
}

// GetObjectMeta makes packed objects ones that caches can store.
func (p *packed) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, UID: p.uid, ResourceVersion: p.version}
}

// Pack transforms objects as Transform does, and packs most PersistentVolumes and claims.
// Only a Packed informer may show them.
func Pack(obj any) (any, error) {
	if _, is := obj.(*packed); is {
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
		out := &packed{claim: true, of: bound{name: o.Spec.VolumeName}}
		o.Spec.VolumeName = ""
		return pack(&o.ObjectMeta, out, o.Marshal)
	case *corev1.PersistentVolume:
		out := &packed{ending: ending(o)}
		if node := o.Labels[pv.LabelNode]; node != "" {
			out.node = Shared(node)
			delete(o.Labels, pv.LabelNode) // Transform has made the map
		}
		if names := persistentvolume.Hostnames(o); len(names) == 1 && equality.Semantic.DeepEqual(o.Spec.NodeAffinity, persistentvolume.OnlyOn(names[0])) {
			out.hostname, o.Spec.NodeAffinity = Shared(names[0]), nil
		}
		if ref := o.Spec.ClaimRef; ref != nil && *ref == (corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}) && ref.Name != "" {
			out.of = bound{Shared(ref.Namespace), ref.Name, types.UID(within(o.Name, string(ref.UID)))}
			o.Spec.ClaimRef = nil
		}
		return pack(&o.ObjectMeta, out, o.Marshal)
	}
	return obj, nil
}

func ending(volume *corev1.PersistentVolume) bool {
	return volume.Status.Phase == corev1.VolumeReleased || volume.Status.Phase == corev1.VolumeFailed
}

// shared holds the strings that Shared has returned.
var shared sync.Map

// Shared returns s, the same string for the same contents each time. It is for words that
// many objects have, as the names of nodes: none is ever forgotten.
func Shared(s string) string {
	one, _ := shared.LoadOrStore(s, s)
	return one.(string)
}

// within returns part, as a part of whole if it is one: then both are kept once. A
// PersistentVolume is named after the UID of its claim.
func within(whole, part string) string {
	if i := strings.Index(whole, part); i >= 0 {
		return whole[i : i+len(part)]
	}
	return part
}

// pack moves what identifies an object to out, and marshals the rest.
func pack(object *metav1.ObjectMeta, out *packed, marshal func() ([]byte, error)) (*packed, error) {
	out.namespace, out.name, out.version = Shared(object.Namespace), object.Name, object.ResourceVersion
	out.uid = types.UID(within(out.of.name, string(object.UID)))
	object.Namespace, object.Name, object.UID, object.ResourceVersion = "", "", "", ""
	data, err := marshal()
	if err != nil {
		return nil, fmt.Errorf("pack %s/%s: %w", out.namespace, out.name, err)
	}
	out.rest = unique.Make(string(data))
	return out, nil
}

// unpack returns the object itself, a new one each time.
func unpack(obj any) any {
	if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
		return cache.DeletedFinalStateUnknown{Key: gone.Key, Obj: unpack(gone.Obj)}
	}
	p, is := obj.(*packed)
	if !is {
		return obj
	}
	rest := []byte(p.rest.Value())
	if p.claim {
		out := &corev1.PersistentVolumeClaim{}
		p.into(&out.ObjectMeta, out.Unmarshal(rest))
		out.Spec.VolumeName = p.of.name
		return out
	}
	out := &corev1.PersistentVolume{}
	p.into(&out.ObjectMeta, out.Unmarshal(rest))
	if p.node != "" {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[pv.LabelNode] = p.node // who keeps it, keeps one for all
	}
	if p.hostname != "" {
		out.Spec.NodeAffinity = persistentvolume.OnlyOn(p.hostname)
	}
	if p.of.name != "" {
		out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: p.of.namespace, Name: p.of.name, UID: p.of.uid}
	}
	return out
}

func (p *packed) into(object *metav1.ObjectMeta, err error) {
	if err != nil { // it was marshalled by this very process
		panic(fmt.Sprintf("unpack %s/%s: %v", p.namespace, p.name, err))
	}
	object.Namespace, object.Name, object.UID, object.ResourceVersion = p.namespace, p.name, p.uid, p.version
}

// Packed is an informer whose transformation is Pack. It shows objects as they are.
type Packed struct{ cache.SharedIndexInformer }

// AddEventHandler adds a handler of objects as they are.
func (i Packed) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(unpacking{h})
}

// AddEventHandlerWithOptions adds a handler of objects as they are.
func (i Packed) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(unpacking{h}, o)
}

// AddEventHandlerWithResyncPeriod adds a handler of objects as they are.
func (i Packed) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithResyncPeriod(unpacking{h}, period)
}

// GetStore returns a store of objects as they are.
func (i Packed) GetStore() cache.Store { return i.GetIndexer() }

// GetIndexer returns an indexer of objects as they are.
func (i Packed) GetIndexer() cache.Indexer {
	return unpackingIndexer{i.SharedIndexInformer.GetIndexer()}
}

// unpacking is a handler of objects as they are.
type unpacking struct{ to cache.ResourceEventHandler }

func (u unpacking) OnAdd(obj any, initial bool) { u.to.OnAdd(unpack(obj), initial) }
func (u unpacking) OnDelete(obj any)            { u.to.OnDelete(unpack(obj)) }

func (u unpacking) OnUpdate(before, after any) {
	now := unpack(after)
	if before == after { // nothing has changed: the cache shows all that it has, now and then
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

// ByNode is the index of PersistentVolumes by their label pv.LabelNode.
const ByNode = "node"

// NodeIndex returns the index ByNode.
func NodeIndex() cache.Indexers {
	return cache.Indexers{ByNode: func(obj any) ([]string, error) {
		node := ""
		switch o := obj.(type) {
		case *packed:
			node = o.node
		case *corev1.PersistentVolume:
			node = o.Labels[pv.LabelNode]
		}
		if node == "" {
			return nil, nil
		}
		return []string{node}, nil
	}}
}

// ForLibrary returns the informer as the library should have it: it is told only of claims
// without a volume and of PersistentVolumes that are released, as it does nothing about the
// others, and indexes only those claims.
func (i Packed) ForLibrary() cache.SharedIndexInformer { return forLibrary{i} }

type forLibrary struct{ Packed }

func (i forLibrary) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

func (i forLibrary) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(cache.FilteringResourceEventHandler{FilterFunc: toBeDone, Handler: unpacking{h}}, o)
}

func (i forLibrary) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &period})
}

func (i forLibrary) AddIndexers(indexers cache.Indexers) error {
	out := make(cache.Indexers, len(indexers))
	for name, index := range indexers {
		out[name] = func(obj any) ([]string, error) {
			if !toBeDone(obj) {
				return nil, nil
			}
			return index(unpack(obj))
		}
	}
	return i.SharedIndexInformer.AddIndexers(out)
}

// toBeDone reports whether the library may have something to do about a stored object.
func toBeDone(obj any) bool {
	if gone, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = gone.Obj
	}
	p, is := obj.(*packed)
	return !is || p.ending
}
