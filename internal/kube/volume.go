package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
)

// Volumes lists the PersistentVolumes of a node, as of some moment after the call, and returns the
// resourceVersion of that moment. The request sets no resourceVersion, so it is a quorum read from
// etcd.
func (c *Client) Volumes(ctx context.Context, node string) (items []corev1.PersistentVolume, revision string, err error) {
	return c.volumes(ctx, "list the PersistentVolumes of node "+node, ofNode(node))
}

// VolumesWithoutNodeLabel lists the PersistentVolumes without flexlvm's node label for which keep returns true,
// including other drivers', as of some moment after the call.
func (c *Client) VolumesWithoutNodeLabel(ctx context.Context, keep func(*corev1.PersistentVolume) bool) (kept []corev1.PersistentVolume, err error) {
	q := query{what: "list the PersistentVolumes of no node", resource: "persistentvolumes", ListOptions: metav1.ListOptions{LabelSelector: "!" + pv.LabelNode}}
	err = inPages(ctx, c, q, func(page *corev1.PersistentVolumeList) {
		for i := range page.Items {
			if keep(&page.Items[i]) {
				kept = append(kept, page.Items[i])
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return kept, nil
}

// VolumesLabelled lists the PersistentVolumes with this value of a label, as of some moment after the
// call.
func (c *Client) VolumesLabelled(ctx context.Context, label, value string) ([]corev1.PersistentVolume, error) {
	items, _, err := c.volumes(ctx, "list the PersistentVolumes with label "+label, label+"="+value)
	return items, err
}

func (c *Client) volumes(ctx context.Context, what, labels string) (items []corev1.PersistentVolume, revision string, err error) {
	out := &corev1.PersistentVolumeList{}
	options := &metav1.ListOptions{LabelSelector: labels}
	request := c.core.Get().Resource("persistentvolumes").VersionedParams(options, metav1.ParameterCodec)
	if err := c.do(ctx, what, request, out); err != nil {
		return nil, "", err
	}
	return out.Items, out.ResourceVersion, nil
}

// Volume returns a PersistentVolume.
func (c *Client) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	out := &corev1.PersistentVolume{}
	return out, c.do(ctx, "get PersistentVolume "+name, c.core.Get().Resource("persistentvolumes").Name(name), out)
}

// Annotate sets annotations of a PersistentVolume, if it still has the resourceVersion of seen; a nil
// value removes the annotation.
func (c *Client) Annotate(ctx context.Context, seen *corev1.PersistentVolume, annotations map[string]*string) error {
	what := "annotate PersistentVolume " + seen.Name
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": seen.UID, "resourceVersion": seen.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return c.do(ctx, what, c.core.Patch(types.MergePatchType).Resource("persistentvolumes").Name(seen.Name).Body(patch), nil)
}

func ofNode(node string) string { return pv.LabelNode + "=" + pv.NodeLabelValue(node) }

// DeleteReleased removes a PersistentVolume whose volume the node has released: it deletes the object, unless
// that has already happened, on the condition that it still has the resourceVersion of seen, and then
// removes flexlvm's finalizer. It succeeds if the object is gone or another object has its name.
//
// A user may still set the reclaim policy of an object that is being deleted to Retain: if the policy
// is not that of seen, DeleteReleased returns a conflict and keeps the finalizer.
//
// Killed in between, it leaves an object that is being deleted and has the finalizer; the next call
// continues from there.
func (c *Client) DeleteReleased(ctx context.Context, seen *corev1.PersistentVolume) error {
	if seen.DeletionTimestamp == nil {
		if err := c.deleteVolume(ctx, seen); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
	}
	// Another client may write the object at the same time: the controller that protects
	// PersistentVolumes removes its own finalizer.
	var err error
	for range 3 {
		if err = c.dropFinalizer(ctx, seen); !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

func (c *Client) deleteVolume(ctx context.Context, seen *corev1.PersistentVolume) error {
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}}
	request := c.core.Delete().Resource("persistentvolumes").Name(seen.Name).Body(options)
	return c.do(ctx, "delete PersistentVolume "+seen.Name, request, nil)
}

func (c *Client) dropFinalizer(ctx context.Context, seen *corev1.PersistentVolume) error {
	name, uid, now := seen.Name, seen.UID, &corev1.PersistentVolume{}
	err := c.do(ctx, "get PersistentVolume "+name, c.core.Get().Resource("persistentvolumes").Name(name), now)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case now.UID != uid || !slices.Contains(now.Finalizers, pv.Finalizer):
		return nil
	case now.DeletionTimestamp == nil:
		return fmt.Errorf("take the finalizer off PersistentVolume %s: the object is not being deleted although it was to be; it is checked again", name)
	case now.Spec.PersistentVolumeReclaimPolicy != seen.Spec.PersistentVolumeReclaimPolicy:
		return apierrors.NewConflict(corev1.Resource("persistentvolumes"), name, errors.New("its reclaim policy has changed since it was judged"))
	}
	patch := kubeobject.FinalizersPatch(now, kubeobject.WithoutFinalizer(now, pv.Finalizer))
	request := c.core.Patch(types.MergePatchType).Resource("persistentvolumes").Name(name).Body(patch)
	err = c.do(ctx, "take the finalizer off PersistentVolume "+name, request, nil)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
