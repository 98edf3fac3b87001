package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// WatchVolumes watches the PersistentVolumes of a node.
func (c *Client) WatchVolumes(node string) *cache.ListWatch {
	return c.listWatch(c.core, "persistentvolumes", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = ofNode(node)
	})
}

// WatchPods watches the pods that run on a node.
func (c *Client) WatchPods(node string) *cache.ListWatch {
	return c.listWatch(c.core, "pods", metav1.NamespaceSystem, func(o *metav1.ListOptions) {
		o.FieldSelector = onNode(node)
	})
}

func onNode(node string) string { return fields.OneTermEqualSelector("spec.nodeName", node).String() }

// WatchNodeStorages watches the NodeStorages of all nodes.
func (c *Client) WatchNodeStorages() *cache.ListWatch {
	return c.listWatch(c.flexlvm, "nodestorages", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchNodeStorage watches one NodeStorage.
func (c *Client) WatchNodeStorage(name string) *cache.ListWatch {
	return c.listWatch(c.flexlvm, "nodestorages", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	})
}

// WatchLocalVolumes watches all LocalVolumes.
func (c *Client) WatchLocalVolumes() *cache.ListWatch {
	return c.listWatch(c.flexlvm, "localvolumes", metav1.NamespaceSystem, func(*metav1.ListOptions) {})
}

// WatchVolumeGroups watches all VolumeGroups.
func (c *Client) WatchVolumeGroups() *cache.ListWatch {
	return c.listWatch(c.flexlvm, "volumegroups", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchVolumeDiscoveries watches the one VolumeDiscovery.
func (c *Client) WatchVolumeDiscoveries() *cache.ListWatch {
	return c.listWatch(c.flexlvm, "volumediscoveries", metav1.NamespaceAll, func(*metav1.ListOptions) {})
}

// WatchDiscovered watches the PersistentVolumes of volumes that a node has discovered, or that any node
// has if node is empty.
func (c *Client) WatchDiscovered(node string) *cache.ListWatch {
	label := flexlvmv1.LabelDiscoveredOn
	if node != "" {
		label += "=" + pv.NodeLabelValue(node)
	}
	return c.listWatch(c.core, "persistentvolumes", metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.LabelSelector = label
	})
}

// listWatch lists and watches a resource in all namespaces. namespace is as for revision.
//
// An API server that was restored from a backup accepts a watch from a resourceVersion that it has not
// reached again yet, and sends no events until then (kubernetes/kubernetes#107457). Instead of starting
// such a watch, listWatch fails as if the resourceVersion were too old, so that the reflector lists
// again.
func (c *Client) listWatch(client rest.Interface, resource, namespace string, options func(*metav1.ListOptions)) *cache.ListWatch {
	of := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, options)
	return &cache.ListWatch{
		ListWithContextFunc: of.ListWithContextFunc,
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if from := o.ResourceVersion; from != "" && from != "0" {
				now, err := c.revision(ctx, client, resource, namespace)
				if err != nil {
					return nil, retriedWithoutList(ctx, err)
				}
				if order, err := resourceversion.CompareResourceVersion(from, now); err == nil && order > 0 {
					return nil, apierrors.NewResourceExpired(fmt.Sprintf("watch %s from resourceVersion %s: the API server is at %s, as if it had been restored from a backup; they are listed again", resource, from, now))
				}
			}
			return of.WatchWithContext(ctx, o)
		},
	}
}

// retriedWithoutList converts err to an error after which a reflector retries the same watch with
// exponential backoff. After most other errors a reflector first lists all objects, and if etcd is slow,
// simultaneous lists from all nodes would keep it slow. Two kinds of errors are returned unchanged: errors
// for which the API server would also refuse the list, so that they are reported, and the error of a
// context that has ended, after which the reflector must not wait.
func retriedWithoutList(ctx context.Context, err error) error {
	if ctx.Err() != nil || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return err
	}
	return apierrors.NewTooManyRequests(err.Error(), 0)
}
