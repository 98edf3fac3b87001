package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// WatchVolumes watches the PersistentVolumes of a node.
func (c *Client) WatchVolumes(node string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.core, "persistentvolumes", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = ofNode(node)
	})
}

// WatchPods watches the pods that run on a node.
func (c *Client) WatchPods(node string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.core, "pods", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = onNode(node)
	})
}

func onNode(node string) string { return fields.OneTermEqualSelector("spec.nodeName", node).String() }

// WatchNodeStorages watches the NodeStorages of all nodes.
func (c *Client) WatchNodeStorages() *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.ours, "nodestorages", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchNodeStorage watches one NodeStorage.
func (c *Client) WatchNodeStorage(name string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.ours, "nodestorages", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
}

// WatchLocalVolumes watches all LocalVolumes.
func (c *Client) WatchLocalVolumes() *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.ours, "localvolumes", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchVolumeGroups watches all VolumeGroups.
func (c *Client) WatchVolumeGroups() *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.ours, "volumegroups", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchVolumeDiscoveries watches the one VolumeDiscovery.
func (c *Client) WatchVolumeDiscoveries() *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(c.ours, "volumediscoveries", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchDiscovered watches the PersistentVolumes of what a node has discovered, or with an
// empty name of what all have.
func (c *Client) WatchDiscovered(node string) *cache.ListWatch {
	label := flexlvmv1.LabelDiscoveredOn
	if node != "" {
		label += "=" + pv.NodeLabelValue(node)
	}
	return cache.NewFilteredListWatchFromClient(c.core, "persistentvolumes", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = label
	})
}
