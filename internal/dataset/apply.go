package dataset

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// A notOursError reports that a name is already used by an object that is not of this volume.
type notOursError struct{ object client.Object }

func (e *notOursError) Error() string {
	return fmt.Sprintf("%s %q already exists and does not belong to this volume; give the VolumeManager or the volume another name, or delete it", kindOf(e.object), e.object.GetName())
}

// kindOf returns the kind of an object. Objects from a cache have an empty TypeMeta.
func kindOf(object client.Object) string { return reflect.TypeOf(object).Elem().Name() }

// applyAll carries out the actions of a plan in their order, up to the first error. If the API server
// denies an action, usually for a quota, and mayFailAlone says so, applyAll continues and returns that
// error at the end. Before the first deletion it asks the API server whether the plan still applies
// (confirm).
func (r *reconciler) applyAll(ctx context.Context, observed *Observed, actions []Action) error {
	owner, id := observed.Owner, observed.Config.ID
	sure := false
	var refused error
	for _, a := range actions {
		if (a.Verb == Delete || a.Verb == Unlabel || a.Verb == RemoveFinalizer) && !sure {
			if err := r.confirm(ctx, observed, actions); err != nil {
				return err
			}
			sure = true
		}
		err := r.apply(ctx, owner, id, a)
		if mayFailAlone(owner, a) && controlplane.Denied(err) {
			refused = cmp.Or(refused, err)
			continue
		}
		if err != nil {
			return err
		}
		if a.Reason != "" {
			r.event(owner, eventType(a.Reason), a.Reason, a.Message)
		}
	}
	return refused
}

// mayFailAlone reports whether the plan continues when the API server denies this action: true for
// Create and Grow, and for deleting a claim in another namespace, which must not be able to keep the
// owner's pods from their data.
func mayFailAlone(owner *flexlvmv1.VolumeManager, a Action) bool {
	switch a.Verb {
	case Create, Grow:
		return true
	case Delete:
		return a.Object.GetNamespace() != "" && a.Object.GetNamespace() != owner.Namespace
	}
	return false
}

func eventType(reason string) string {
	if reason == "LoadFailed" {
		return corev1.EventTypeWarning
	}
	return corev1.EventTypeNormal
}

// event records an event about owner. It sets the kind, because objects from a cache have none, and
// the recorder can look up only the kinds of Kubernetes itself.
func (r *reconciler) event(owner *flexlvmv1.VolumeManager, kind, reason, message string) {
	object := owner.DeepCopy()
	object.SetGroupVersionKind(flexlvmv1.GroupVersion.WithKind(replica.OwnerKind))
	r.Events.Event(object, kind, reason, message)
}

// confirm returns errChanged if the VolumeManager has changed since it was observed, or if the nodes that carry
// the dataset's label are not those that were observed: the scheduler sends pods to a labelled node for the
// data that is about to be deleted. It ends with confirmUnused.
func (r *reconciler) confirm(ctx context.Context, observed *Observed, actions []Action) error {
	labelled, err := r.labelled(ctx, observed)
	if err != nil {
		return err
	}
	if !slices.Equal(labelled, observed.Labelled) {
		return errChanged
	}
	owner := observed.Owner
	now := &flexlvmv1.VolumeManager{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(owner), now); err != nil {
		return fmt.Errorf("get VolumeManager %s/%s once more: %w", owner.Namespace, owner.Name, err)
	}
	if now.UID != owner.UID || now.Generation != owner.Generation || (now.DeletionTimestamp == nil) != (owner.DeletionTimestamp == nil) {
		return errChanged
	}
	return r.confirmUnused(ctx, observed, actions)
}

// confirmUnused returns errChanged if an action gives up uploaded content and the API server shows a pod that
// uses it although the plan knew of none.
func (r *reconciler) confirmUnused(ctx context.Context, observed *Observed, actions []Action) error {
	if len(observed.Consumers) > 0 || !slices.ContainsFunc(actions, observed.givesUp) {
		return nil
	}
	used := false
	if err := r.consumers(ctx, observed, func(*corev1.Pod) { used = true }); err != nil {
		return err
	}
	if used {
		return errChanged
	}
	return nil
}

// givesUp reports whether an action releases a claim that consumers wrote to and that was uploaded. A claim
// with a finalizer is mirrored (isHeld).
func (s *Observed) givesUp(a Action) bool {
	claim, is := a.Object.(*corev1.PersistentVolumeClaim)
	return is && (a.Verb == RemoveFinalizer || a.Verb == Delete && s.Upload && s.isWritten(claim))
}

func (r *reconciler) apply(ctx context.Context, owner *flexlvmv1.VolumeManager, id string, a Action) error {
	switch a.Verb {
	case Create:
		return r.create(ctx, owner, id, a.Object)
	case Delete:
		err := r.write.Delete(ctx, a.Object, &client.DeleteOptions{
			Preconditions: preconditions(a.Object), PropagationPolicy: foreground(),
		})
		if err := client.IgnoreNotFound(err); err != nil {
			return fmt.Errorf("delete %s %s: %w", kindOf(a.Object), strings.TrimPrefix(client.ObjectKeyFromObject(a.Object).String(), "/"), err)
		}
		return nil
	case Annotate:
		return r.patch(ctx, a.Object, map[string]any{"metadata": map[string]any{
			"uid": a.Object.GetUID(), "annotations": a.Annotations,
		}})
	case Grow:
		return r.patch(ctx, a.Object, map[string]any{
			"metadata": map[string]any{"uid": a.Object.GetUID()},
			"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": a.Size.String()}}},
		})
	case AddFinalizer, RemoveFinalizer:
		return r.setFinalizer(ctx, a.Object, a.Verb == AddFinalizer)
	case Label:
		return r.label(ctx, a.Node, a.Key, replica.NodeLabelValue)
	case Unlabel:
		return client.IgnoreNotFound(r.label(ctx, a.Node, a.Key, nil))
	}
	return fmt.Errorf("carry out %q: unknown action", a.Verb)
}

// foreground keeps a Job until its pods have ended: the next loader must not begin while they still write.
func foreground() *metav1.DeletionPropagation {
	policy := metav1.DeletePropagationForeground
	return &policy
}

// create creates an object. An existing object of this volume is no error: the cache is behind.
func (r *reconciler) create(ctx context.Context, owner *flexlvmv1.VolumeManager, id string, object client.Object) error {
	err := r.write.Create(ctx, object)
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return fmt.Errorf("create %s %s: %w", kindOf(object), object.GetName(), err)
		}
		return nil
	}
	there := &metav1.PartialObjectMetadata{}
	kind, err := r.write.GroupVersionKindFor(object)
	if err != nil {
		return fmt.Errorf("check %s %s: %w", kindOf(object), object.GetName(), err)
	}
	there.SetGroupVersionKind(kind)
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(object), there); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !belongs(there, owner, id) {
		return &notOursError{object}
	}
	return nil
}

func (r *reconciler) patch(ctx context.Context, object client.Object, change any) error {
	text, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("change %s %s: %w", kindOf(object), object.GetName(), err)
	}
	// A copy, because Patch overwrites it with the API server's answer, and the plan still uses the original.
	target := object.DeepCopyObject().(client.Object)
	if err := r.write.Patch(ctx, target, client.RawPatch(types.MergePatchType, text)); err != nil {
		return fmt.Errorf("change %s %s: %w", kindOf(object), object.GetName(), err)
	}
	return nil
}

// setFinalizer adds flexlvm's finalizer to the observed claim, or removes it.
func (r *reconciler) setFinalizer(ctx context.Context, claim client.Object, held bool) error {
	finalizers := kubeobject.WithoutFinalizer(claim, finalizerMirror)
	if held {
		finalizers = kubeobject.WithFinalizer(claim, finalizerMirror)
	}
	return r.patch(ctx, claim, json.RawMessage(kubeobject.FinalizersPatch(claim, finalizers)))
}

// label sets a label of a node, or removes it if value is nil.
func (r *reconciler) label(ctx context.Context, node, key string, value any) error {
	target := &metav1.PartialObjectMetadata{}
	target.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	target.SetName(node)
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}})
	if err != nil {
		return fmt.Errorf("label node %q: %w", node, err)
	}
	if err := r.write.Patch(ctx, target, client.RawPatch(types.MergePatchType, text)); err != nil {
		return fmt.Errorf("label node %q: %w", node, err)
	}
	return nil
}
