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

// groupKey marks what a publisher's queue holds of node groups; no label of a node has it.
const groupKey = "group/"

// A NodeGroup says what a node will offer that is not there yet: the cluster autoscaler asks
// the scheduler about nodes that it could add.
type NodeGroup struct {
	Name  string // the value of the label pv.LabelNodeGroup of its nodes
	Pools map[volume.PoolName][]volume.Bytes
}

// ParseNodeGroups reads the values of --node-group, each for another group.
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

// ParseNodeGroup reads NAME=POOL:SIZE[+SIZE...][,POOL:SIZE...]: what each pool of a new node
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
		if at := strings.LastIndex(one, ":"); at >= 0 { // that of a directory pool has a colon in its name
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

// most is the largest volume of a class that a new node could hold; false where it lacks the
// pool.
func (g NodeGroup) most(class volume.Spec) (volume.Bytes, bool) {
	devices, has := g.Pools[class.Pool()]
	if !has {
		return 0, false
	}
	if class.Devices() <= 1 { // it can have all, wherever that is
		var sum volume.Bytes
		for _, d := range devices {
			sum += d
		}
		devices = []volume.Bytes{sum}
	}
	return volume.Largest(devices, class, ledger.ExtentOf(class.Pool(), 0)), true
}

// templateCapacity is the object by which the scheduler learns what a node of a group will
// offer. It selects the group by its label, and no node that is there, by their hostnames:
// those have capacities of their own. A node that is made up from a template has a hostname
// that no other has.
func templateCapacity(namespace string, group NodeGroup, hostnames []string, class *storagev1.StorageClass, most volume.Bytes) *storagev1.CSIStorageCapacity {
	size := resource.NewQuantity(int64(most), resource.BinarySI)
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

// templates are the capacities that a node group should have; none where it is not declared.
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
		if most, has := p.groups[at].most(parameters.Spec); has {
			out = append(out, templateCapacity(p.namespace, p.groups[at], slices.Compact(hostnames), class, most))
		}
	}
	slices.SortFunc(out, func(a, b *storagev1.CSIStorageCapacity) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
