package controlplane

import (
	"fmt"
	"strconv"
	"sync"
	"unique"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// A packed object is a PersistentVolume, or a claim that has its volume, as a cache stores it:
// what it alone has in few bytes, and the rest as protobuf, kept once for all that have the same,
// as most volumes of one class and size do. A large cluster has hundreds of thousands of both,
// and as structs with maps each takes several kilobytes. What does not have the form that
// Kubernetes gives it today stays in the rest, which then is the object's own.
type packed interface {
	metav1.ObjectMetaAccessor
	// unpack returns the object itself, a new one each time.
	unpack() any
}

// An identity is what an object alone has, each zero where the rest has it.
type identity struct {
	uid     uuid.UUID
	version uint64 // resourceVersion
}

// take moves what fits from an object.
func take(object *metav1.ObjectMeta) (out identity) {
	if id, err := uuid.Parse(string(object.UID)); err == nil && id != uuid.Nil && id.String() == string(object.UID) {
		out.uid, object.UID = id, ""
	}
	if n, err := strconv.ParseUint(object.ResourceVersion, 10, 64); err == nil && strconv.FormatUint(n, 10) == object.ResourceVersion && n != 0 {
		out.version, object.ResourceVersion = n, ""
	}
	return out
}

func (i identity) give(object *metav1.ObjectMeta) {
	if i.uid != uuid.Nil {
		object.UID = types.UID(i.uid.String())
	}
	if i.version != 0 {
		object.ResourceVersion = strconv.FormatUint(i.version, 10)
	}
}

// meta is that of an object of a name, where nothing of it is in the rest.
func (i identity) meta(namespace, name string) (out *metav1.ObjectMeta, all bool) {
	out = &metav1.ObjectMeta{Namespace: namespace, Name: name}
	i.give(out)
	return out, i.uid != uuid.Nil && i.version != 0
}

// A packedClaim is a claim that has its volume.
type packedClaim struct {
	identity
	namespace unique.Handle[string]
	name      string
	rest      unique.Handle[string] // without a volume's name where that follows from the UID
}

func packClaim(claim *corev1.PersistentVolumeClaim) (*packedClaim, error) {
	if claim.Spec.VolumeName == persistentvolume.NameFor(claim.UID) {
		claim.Spec.VolumeName = ""
	}
	out := &packedClaim{identity: take(&claim.ObjectMeta), namespace: unique.Make(claim.Namespace), name: claim.Name}
	claim.Namespace, claim.Name = "", ""
	data, err := claim.Marshal()
	if err != nil {
		return nil, fmt.Errorf("pack claim %s/%s: %w", out.namespace.Value(), out.name, err)
	}
	out.rest = unique.Make(string(data))
	return out, nil
}

func (p *packedClaim) unpack() any {
	out := &corev1.PersistentVolumeClaim{}
	unmarshalled(out.Unmarshal([]byte(p.rest.Value())), p.name)
	out.Namespace, out.Name = p.namespace.Value(), p.name
	p.give(&out.ObjectMeta)
	if out.Spec.VolumeName == "" {
		out.Spec.VolumeName = persistentvolume.NameFor(out.UID)
	}
	return out
}

func (p *packedClaim) GetObjectMeta() metav1.Object {
	if out, all := p.meta(p.namespace.Value(), p.name); all {
		return out
	}
	return p.unpack().(*corev1.PersistentVolumeClaim).GetObjectMeta()
}

// A packedVolume is a PersistentVolume.
type packedVolume struct {
	identity
	name   string
	claim  string // name of the claim that it is bound to and named after; empty where rest has it
	common unique.Handle[common]
	rest   unique.Handle[string]
}

// common is what PersistentVolumes of a node have in common.
type common struct {
	node      string // as NodeLabel says; empty for others
	label     string // that says it
	hostname  string // the only one that they may be on; empty where rest tells
	namespace string // of the claims that they are bound to
	ending    bool   // they are released, or have failed to be reclaimed
}

func packVolume(volume *corev1.PersistentVolume) (*packedVolume, error) {
	out := &packedVolume{name: volume.Name}
	all := common{ending: ending(volume)}
	if label, node := nodeLabel(volume); node != "" {
		all.label, all.node = label, Shared(node)
		delete(volume.Labels, label) // Transform has made the map
	}
	if names := persistentvolume.Hostnames(volume); len(names) == 1 && equality.Semantic.DeepEqual(volume.Spec.NodeAffinity, persistentvolume.OnlyOn(names[0])) {
		all.hostname, volume.Spec.NodeAffinity = Shared(names[0]), nil
	}
	if ref := volume.Spec.ClaimRef; ref != nil && ref.Name != "" && volume.Name == persistentvolume.NameFor(ref.UID) && *ref == (corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}) {
		all.namespace, out.claim = Shared(ref.Namespace), ref.Name
		volume.Spec.ClaimRef = nil
	}
	out.identity, out.common = take(&volume.ObjectMeta), unique.Make(all)
	volume.Name = ""
	data, err := volume.Marshal()
	if err != nil {
		return nil, fmt.Errorf("pack PersistentVolume %s: %w", out.name, err)
	}
	out.rest = unique.Make(string(data))
	return out, nil
}

func (p *packedVolume) unpack() any {
	out := &corev1.PersistentVolume{}
	unmarshalled(out.Unmarshal([]byte(p.rest.Value())), p.name)
	out.Name = p.name
	p.give(&out.ObjectMeta)
	all := p.common.Value()
	if all.node != "" {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[all.label] = all.node // who keeps it, keeps one for all
	}
	if all.hostname != "" {
		out.Spec.NodeAffinity = persistentvolume.OnlyOn(all.hostname)
	}
	if p.claim != "" {
		out.Spec.ClaimRef = &corev1.ObjectReference{Namespace: all.namespace, Name: p.claim, UID: types.UID(p.name[len(persistentvolume.NameFor("")):])}
	}
	return out
}

func (p *packedVolume) GetObjectMeta() metav1.Object {
	if out, all := p.meta("", p.name); all {
		return out
	}
	return p.unpack().(*corev1.PersistentVolume).GetObjectMeta()
}

func ending(volume *corev1.PersistentVolume) bool {
	return volume.Status.Phase == corev1.VolumeReleased || volume.Status.Phase == corev1.VolumeFailed
}

// unmarshalled takes no error: it was marshalled by this very process.
func unmarshalled(err error, name string) {
	if err != nil {
		panic(fmt.Sprintf("unpack %s: %v", name, err))
	}
}

// unpack returns a stored object as it is.
func unpack(obj any) any {
	switch o := obj.(type) {
	case cache.DeletedFinalStateUnknown:
		return cache.DeletedFinalStateUnknown{Key: o.Key, Obj: unpack(o.Obj)}
	case packed:
		return o.unpack()
	}
	return obj
}

// shared holds the strings that Shared has returned.
var shared sync.Map

// Shared returns s, the same string for the same contents each time. It is for words that
// many objects have, as the names of nodes: none is ever forgotten.
func Shared(s string) string {
	one, _ := shared.LoadOrStore(s, s)
	return one.(string)
}
