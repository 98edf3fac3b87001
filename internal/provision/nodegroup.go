package provision

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// groupKey prefixes node groups in a publisher's queue; no node label value begins with it.
const groupKey = "group/"

// A NodeGroup describes the offer of a node that does not exist yet: the cluster autoscaler simulates
// scheduling on nodes that it could add.
type NodeGroup struct {
	Name  string // the value of the label pv.LabelNodeGroup of its nodes
	Pools map[volume.PoolName][]volume.Bytes
}

// ParseNodeGroups parses the values of --node-group, each for a different group.
func ParseNodeGroups(texts []string) ([]NodeGroup, error) {
	var out []NodeGroup
	for _, text := range texts {
		group, err := ParseNodeGroup(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(g NodeGroup) bool { return g.Name == group.Name }) {
			return nil, fmt.Errorf("--node-group is %q: %q is given twice; put its pools into one, with commas, such as workers=flexlvm:900Gi,fast:1Ti", text, group.Name)
		}
		out = append(out, group)
	}
	return out, nil
}

// ParseNodeGroup parses NAME=POOL:SIZE[+SIZE...][,POOL:SIZE...]: the room that each pool of a new node
// can promise, on one device or several.
func ParseNodeGroup(text string) (NodeGroup, error) {
	wrong := func(why string) error {
		return fmt.Errorf("--node-group is %q: %s; give NAME=POOL:SIZE, such as workers=flexlvm:900Gi", text, why)
	}
	name, pools, found := strings.Cut(text, "=")
	if !found || name == "" || pv.NodeLabelValue(name) != name {
		return NodeGroup{}, wrong("it names no value of a label")
	}
	out := NodeGroup{Name: name, Pools: map[volume.PoolName][]volume.Bytes{}}
	for one := range strings.SplitSeq(pools, ",") {
		of, sizes := one, ""
		if at := strings.LastIndex(one, ":"); at >= 0 { // a directory pool's name contains a colon
			of, sizes = one[:at], one[at+1:]
		}
		in, err := volume.ParsePool("POOL", of)
		if err != nil {
			return NodeGroup{}, wrong(err.Error())
		}
		if _, twice := out.Pools[in]; twice {
			return NodeGroup{}, wrong(fmt.Sprintf("pool %q is given twice; give its devices as SIZE+SIZE", in))
		}
		for size := range strings.SplitSeq(sizes, "+") {
			q, err := resource.ParseQuantity(size)
			if err != nil || q.Sign() <= 0 {
				return NodeGroup{}, wrong(fmt.Sprintf("%q is not a size", size))
			}
			out.Pools[in] = append(out.Pools[in], volume.Bytes(q.Value()))
		}
	}
	return out, nil
}

// maxVolumeSize returns the largest volume of a class that a new node could hold; false if it lacks the pool.
func (g NodeGroup) maxVolumeSize(class volume.Spec) (volume.Bytes, bool) {
	devices, has := g.Pools[class.Pool()]
	if !has {
		return 0, false
	}
	if class.Devices() <= 1 { // a linear volume can use all of the room, on whichever devices
		var sum volume.Bytes
		for _, d := range devices {
			sum += d
		}
		devices = []volume.Bytes{sum}
	}
	return volume.Largest(devices, class, ledger.ExtentOf(class.Pool(), 0)), true
}

// templateCapacity returns the object that shows the scheduler what a node of a group will offer. Its
// selector matches the group's label, but excludes the hostnames of existing nodes, which have their
// own capacities. The autoscaler's template node has a unique hostname.
func templateCapacity(namespace string, group NodeGroup, hostnames []string, class *storagev1.StorageClass, maxSize volume.Bytes) *storagev1.CSIStorageCapacity {
	size := resource.NewQuantity(int64(maxSize), resource.BinarySI)
	selector := []metav1.LabelSelectorRequirement{
		{Key: pv.LabelNodeGroup, Operator: metav1.LabelSelectorOpIn, Values: []string{group.Name}},
		{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpExists},
	}
	if len(hostnames) > 0 {
		selector = append(selector, metav1.LabelSelectorRequirement{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpNotIn, Values: hostnames})
	}
	return &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: capacityName(class.Name, "group."+group.Name),
			Labels: map[string]string{"app.kubernetes.io/part-of": "flexlvm", labelManaged: managedBy, pv.LabelNodeGroup: group.Name},
		},
		NodeTopology:     &metav1.LabelSelector{MatchExpressions: selector},
		StorageClassName: class.Name, Capacity: size, MaximumVolumeSize: size,
	}
}

// templates returns the wanted capacities of a node group; none if the group is not configured.
func (p *publisher) templates(name string) ([]*storagev1.CSIStorageCapacity, error) {
	at := slices.IndexFunc(p.groups, func(g NodeGroup) bool { return g.Name == name })
	if at < 0 {
		return nil, nil
	}
	nodes, err := p.listers.Nodes.List(labels.SelectorFromSet(labels.Set{pv.LabelNodeGroup: name}))
	if err != nil {
		return nil, err
	}
	var hostnames []string
	for _, node := range nodes {
		if hostname := hostnameLabel(node); hostname != "" {
			hostnames = append(hostnames, hostname)
		}
	}
	slices.Sort(hostnames)
	hostnames = slices.Compact(hostnames)
	classes, err := p.listers.Classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var out []*storagev1.CSIStorageCapacity
	for _, class := range classes {
		parameters, ours := offers(class, p.door)
		if !ours {
			continue
		}
		if maxSize, has := p.groups[at].maxVolumeSize(parameters.Spec); has {
			out = append(out, templateCapacity(p.namespace, p.groups[at], hostnames, class, maxSize))
		}
	}
	slices.SortFunc(out, func(a, b *storagev1.CSIStorageCapacity) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
