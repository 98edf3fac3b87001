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

// A packed object is the cached form of a PersistentVolume, or of a claim with a volume: its unique
// fields in few bytes, and the rest as protobuf, interned, because the rest is equal for most volumes
// of one class and size. A large cluster has hundreds of thousands of both, and as structs with maps
// each takes several kilobytes. A unique field that does not have the form that Kubernetes uses today
// stays in the rest, which then is not shared.
type packed interface {
	metav1.ObjectMetaAccessor
	// unpack returns the original object, newly allocated by each call.
	unpack() any
}

// An identity holds an object's unique fields; a field is zero if the rest holds it.
type identity struct {
	uid     uuid.UUID
	version uint64 // resourceVersion
}

// extractIdentity moves the fields that fit from an object's metadata into an identity.
func extractIdentity(object *metav1.ObjectMeta) (out identity) {
	if id, err := uuid.Parse(string(object.UID)); err == nil && id != uuid.Nil && id.String() == string(object.UID) {
		out.uid, object.UID = id, ""
	}
	if n, err := strconv.ParseUint(object.ResourceVersion, 10, 64); err == nil && strconv.FormatUint(n, 10) == object.ResourceVersion && n != 0 {
		out.version, object.ResourceVersion = n, ""
	}
	return out
}

// restoreTo sets the fields of the identity in the metadata of an object.
func (i identity) restoreTo(object *metav1.ObjectMeta) {
	if i.uid != uuid.Nil {
		object.UID = types.UID(i.uid.String())
	}
	if i.version != 0 {
		object.ResourceVersion = strconv.FormatUint(i.version, 10)
	}
}

// meta returns the metadata of an object, and reports whether no part of the identity is in the rest.
func (i identity) meta(namespace, name string) (out *metav1.ObjectMeta, all bool) {
	out = &metav1.ObjectMeta{Namespace: namespace, Name: name}
	i.restoreTo(out)
	return out, i.uid != uuid.Nil && i.version != 0
}

// A packedClaim is a packed claim with a volume.
type packedClaim struct {
	identity
	namespace unique.Handle[string]
	name      string
	rest      unique.Handle[string] // without the volume's name if that follows from the UID
}

func packClaim(claim *corev1.PersistentVolumeClaim) (*packedClaim, error) {
	if claim.Spec.VolumeName == persistentvolume.NameFor(claim.UID) {
		claim.Spec.VolumeName = ""
	}
	out := &packedClaim{identity: extractIdentity(&claim.ObjectMeta), namespace: unique.Make(claim.Namespace), name: claim.Name}
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
	mustUnmarshal(out, p.rest.Value(), p.name)
	out.Namespace, out.Name = p.namespace.Value(), p.name
	p.restoreTo(&out.ObjectMeta)
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

// A packedVolume is a packed PersistentVolume.
type packedVolume struct {
	identity
	name   string
	claim  string // name of the claim that the volume is bound to and named after; empty if rest holds it
	common unique.Handle[common]
	rest   unique.Handle[string]
}

// common holds the fields that PersistentVolumes of a node and namespace share.
type common struct {
	node      string // its NodeLabel; may be empty
	label     string // the label that holds node
	hostname  string // the only hostname of the node affinity; empty if rest holds the affinity
	namespace string // of the volumes' claims
	ending    bool   // the volumes are released, or could not be reclaimed
}

func packVolume(volume *corev1.PersistentVolume) (*packedVolume, error) {
	out := &packedVolume{name: volume.Name}
	all := common{ending: ending(volume)}
	if label, node := nodeLabel(volume); node != "" {
		all.label, all.node = label, Shared(node)
		delete(volume.Labels, label) // Transform has allocated the map
	}
	if names := persistentvolume.Hostnames(volume); len(names) == 1 && equality.Semantic.DeepEqual(volume.Spec.NodeAffinity, persistentvolume.NodeAffinity(names[0])) {
		all.hostname, volume.Spec.NodeAffinity = Shared(names[0]), nil
	}
	if ref := volume.Spec.ClaimRef; ref != nil && ref.Name != "" && volume.Name == persistentvolume.NameFor(ref.UID) && *ref == (corev1.ObjectReference{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}) {
		all.namespace, out.claim = Shared(ref.Namespace), ref.Name
		volume.Spec.ClaimRef = nil
	}
	out.identity, out.common = extractIdentity(&volume.ObjectMeta), unique.Make(all)
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
	mustUnmarshal(out, p.rest.Value(), p.name)
	out.Name = p.name
	p.restoreTo(&out.ObjectMeta)
	all := p.common.Value()
	if all.node != "" {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[all.label] = all.node // the string is interned, so objects share it
	}
	if all.hostname != "" {
		out.Spec.NodeAffinity = persistentvolume.NodeAffinity(all.hostname)
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

// mustUnmarshal panics on an error: this process marshalled the data itself.
func mustUnmarshal(into interface{ Unmarshal(data []byte) error }, data, name string) {
	if err := into.Unmarshal([]byte(data)); err != nil {
		panic(fmt.Sprintf("unpack %s: %v", name, err))
	}
}

// unpack returns the original of a stored object.
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

// Shared interns s: it returns the same string for equal contents. It is for strings that many objects
// contain, such as node names; none is ever freed.
func Shared(s string) string {
	one, _ := shared.LoadOrStore(s, s)
	return one.(string)
}
