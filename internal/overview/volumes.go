package overview

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Volume is a volume that a PersistentVolume or a node's report describes.
type Volume struct {
	Node      string       `json:"node"`
	Pool      string       `json:"pool"`
	Name      string       `json:"name"` // name of the volume, or of a PersistentVolume that cannot be parsed
	Namespace string       `json:"namespace,omitempty"`
	Claim     string       `json:"claim,omitempty"`
	Pods      []string     `json:"pods,omitempty"`
	Size      volume.Bytes `json:"size"`
	// State is the phase of the PersistentVolume, or the volume's state if a node lists it as released or as an
	// orphan.
	State         string      `json:"state"`
	LastUsed      metav1.Time `json:"lastUsed,omitzero"`
	Released      metav1.Time `json:"released,omitzero"`
	EvictionOrder int32       `json:"evictionOrder,omitempty"`
	Kept          string      `json:"kept,omitempty"`
}

// KeptOrphan is the value of Kept for an orphan: a volume without a PersistentVolume that was never released.
const KeptOrphan = "Orphan"

// Unreadable is the state of a PersistentVolume that cannot be parsed.
const Unreadable = "Unreadable"

// Objects are the API objects that the answers are computed from.
type Objects struct {
	Storages []flexlvmv1.NodeStorage
	Volumes  []corev1.PersistentVolume
	Pods     []corev1.Pod
}

// Filter selects volumes; empty fields match all.
type Filter struct{ Node, Namespace, Claim string }

func (f Filter) takes(v Volume) bool {
	return (f.Node == "" || f.Node == v.Node) && (f.Namespace == "" || f.Namespace == v.Namespace) && (f.Claim == "" || f.Claim == v.Claim)
}

// VolumesOf returns the volumes of a cluster by node: those in use, then released ones in the order of
// eviction. Of released volumes and orphans it returns those that the nodes list.
func VolumesOf(o Objects, f Filter) []Volume {
	nodes := map[string]string{} // names by the value of their label
	for i := range o.Storages {
		nodes[pv.NodeLabelValue(o.Storages[i].Name)] = o.Storages[i].Name
	}
	known := map[place]*Volume{}
	users := podsOf(o.Pods)
	var all []*Volume
	for i := range o.Volumes {
		object := &o.Volumes[i]
		if !persistentvolume.IsOurs(object) || object.Labels[pv.LabelNode] == "" {
			continue
		}
		one := volumeOf(object, users)
		one.Node = cmp.Or(nodes[object.Labels[pv.LabelNode]], object.Labels[pv.LabelNode])
		all = append(all, &one)
		known[place{one.Node, one.Name}] = &one
	}
	for i := range o.Storages {
		all = append(all, reportedBy(&o.Storages[i], known)...)
	}
	out := []Volume{}
	for _, v := range all {
		if f.takes(*v) {
			out = append(out, *v)
		}
	}
	slices.SortFunc(out, func(a, b Volume) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.EvictionOrder, b.EvictionOrder),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// A place identifies a volume: the replicas of a dataset have the same name on all their nodes.
type place struct{ node, name string }

// reportedBy adds the details of a node's report to the known volumes, and returns the other volumes of the
// report.
func reportedBy(s *flexlvmv1.NodeStorage, known map[place]*Volume) (others []*Volume) {
	for _, r := range s.Status.Released {
		one, there := known[place{s.Name, r.Name}]
		if !there {
			one = &Volume{Node: s.Name, Name: r.Name, Namespace: r.Namespace, Size: bytesOf(r.Size)}
			if r.Origin != nil {
				one.Claim = r.Origin.Claim
			}
			others = append(others, one)
		}
		one.Pool, one.State, one.LastUsed, one.Released, one.EvictionOrder, one.Kept = r.Pool, r.State, r.LastUsed, r.Released, r.EvictionOrder, r.Kept
	}
	for _, o := range orphansOf(s) {
		if _, there := known[place{s.Name, o.Name}]; !there {
			others = append(others, &Volume{Node: s.Name, Pool: o.Pool, Name: o.Name, Namespace: o.Namespace, Size: bytesOf(o.Size), State: o.State, LastUsed: o.LastUsed, Kept: KeptOrphan})
		}
	}
	return others
}

// rank sorts volumes in use before released ones, and those before volumes in the order of eviction.
func rank(v Volume) int {
	switch {
	case v.EvictionOrder > 0:
		return 2
	case v.Kept != "":
		return 1
	}
	return 0
}

func volumeOf(object *corev1.PersistentVolume, users map[claimKey][]string) Volume {
	out := Volume{Name: object.Name, State: string(object.Status.Phase), Size: bytesOf(object.Spec.Capacity[corev1.ResourceStorage])}
	if ref := object.Spec.ClaimRef; ref != nil {
		out.Namespace, out.Claim = ref.Namespace, ref.Name
		out.Pods = users[claimKey{ref.Namespace, ref.Name}]
	}
	parsed, err := persistentvolume.Parse(object)
	if err != nil {
		out.State = Unreadable
		return out
	}
	out.Pool, out.Name = string(parsed.Pool()), string(parsed.Volume)
	return out
}

type claimKey struct{ namespace, name string }

// podsOf returns the names of pods that have not ended, by the claims that they use.
func podsOf(pods []corev1.Pod) map[claimKey][]string {
	out := map[claimKey][]string{}
	for i := range pods {
		p := &pods[i]
		if kubeobject.PodEnded(p) {
			continue
		}
		for _, v := range p.Spec.Volumes {
			if name := kubeobject.ClaimName(p, v); name != "" {
				key := claimKey{p.Namespace, name}
				out[key] = append(out[key], p.Name)
			}
		}
	}
	return out
}

// orphansOf returns the orphans of a node, except released volumes that are listed there because of a problem.
func orphansOf(s *flexlvmv1.NodeStorage) (out []flexlvmv1.Orphan) {
	for _, o := range s.Status.Orphans {
		if !slices.ContainsFunc(s.Status.Released, func(r flexlvmv1.ReleasedVolume) bool { return r.Name == o.Name && r.FilesystemUUID == o.FilesystemUUID }) {
			out = append(out, o)
		}
	}
	return out
}

func bytesOf(q resource.Quantity) volume.Bytes { return volume.Bytes(q.Value()) }
