package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	// catchUpSeconds is the timeout that CatchUp requests for its watch. The API server sends a
	// bookmark two seconds before a watch ends, but not if that moment is already past when the watch
	// starts.
	catchUpSeconds = 3
	// noObject is the name of no object: a list filtered by one name costs as much as a GET, and
	// returns the resourceVersion at which it was served.
	noObject = "flexlvm.io-revision"
)

// Revision returns a resourceVersion for PersistentVolumes that is current at some moment after the
// call.
func (c *Client) Revision(ctx context.Context) (string, error) {
	return c.revision(ctx, c.core, "persistentvolumes", metav1.NamespaceAll)
}

// revision is Revision for any resource. For a namespaced resource, namespace must name a namespace, no
// matter which: a list by name in all namespaces scans every object.
func (c *Client) revision(ctx context.Context, client rest.Interface, resource, namespace string) (string, error) {
	what := "read the resourceVersion of the " + resource
	out := metav1.PartialObjectMetadataList{}
	options := &metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, noObject).String()}
	request := client.Get().Namespace(namespace).Resource(resource).VersionedParams(options, metav1.ParameterCodec)
	if err := c.metadata(ctx, what, request, "PartialObjectMetadataList", &out); err != nil {
		return "", err
	}
	if out.ResourceVersion == "" {
		return "", fmt.Errorf("%s: the API server gave none", what)
	}
	return out.ResourceVersion, nil
}

// VolumeCount returns the number of PersistentVolumes in the cluster, including other drivers'.
func (c *Client) VolumeCount(ctx context.Context) (int64, error) {
	out := metav1.PartialObjectMetadataList{}
	request := c.core.Get().Resource("persistentvolumes").VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec)
	if err := c.metadata(ctx, "count the PersistentVolumes", request, "PartialObjectMetadataList", &out); err != nil {
		return 0, err
	}
	count := int64(len(out.Items))
	if out.RemainingItemCount != nil {
		count += *out.RemainingItemCount
	}
	return count, nil
}

// CatchUp updates objects, the PersistentVolumes of a node at resourceVersion from, to a
// resourceVersion that is not older than to. It takes up to three seconds. After an error, the contents
// of objects are undefined.
func (c *Client) CatchUp(ctx context.Context, node, from, to string, objects map[string]*corev1.PersistentVolume) error {
	what := fmt.Sprintf("follow the PersistentVolumes of node %s from resourceVersion %s to %s", node, from, to)
	order, err := resourceversion.CompareResourceVersion(from, to)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if order > 0 {
		return fmt.Errorf("%s: the API server has gone back in time, as if it had been restored from a backup", what)
	}
	ctx, cancel := context.WithTimeout(ctx, catchUpSeconds*time.Second+c.timeout)
	defer cancel()
	seconds := int64(catchUpSeconds)
	stream, err := c.core.Get().Resource("persistentvolumes").VersionedParams(&metav1.ListOptions{
		LabelSelector: ofNode(node), ResourceVersion: from, AllowWatchBookmarks: true, TimeoutSeconds: &seconds, Watch: true,
	}, metav1.ParameterCodec).MaxRetries(0).Watch(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		reached, err := apply(event, to, objects)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if reached {
			return nil
		}
	}
	return fmt.Errorf("%s: the watch has ended before", what)
}

// apply applies one event to objects, and reports whether it is as new as to.
func apply(event watch.Event, to string, objects map[string]*corev1.PersistentVolume) (reached bool, err error) {
	if event.Type == watch.Error {
		return false, apierrors.FromObject(event.Object)
	}
	object, is := event.Object.(*corev1.PersistentVolume)
	if !is {
		return false, fmt.Errorf("the watch has sent a %T", event.Object)
	}
	switch event.Type {
	case watch.Added, watch.Modified:
		objects[object.Name] = object
	case watch.Deleted:
		delete(objects, object.Name)
	case watch.Bookmark:
	default:
		return false, fmt.Errorf("the watch has sent an event %q", event.Type)
	}
	order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, to)
	return order >= 0, err
}
