package growth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// carryOut writes one step after the other, each on the condition that the object is unchanged since
// the previous step. It returns the latest PersistentVolume, even with an error.
func (c *Controller) carryOut(ctx context.Context, claim *corev1.PersistentVolumeClaim, object *corev1.PersistentVolume, steps []step) (*corev1.PersistentVolume, error) {
	for _, s := range steps {
		var err error
		if s.status != nil {
			claim, err = c.writeClaim(ctx, claim, *s.status)
		} else {
			object, err = c.writeVolume(ctx, object, s)
		}
		if err != nil {
			c.Ledger.NotWritten(object)
			return object, fmt.Errorf("%s: %w", s.what, err)
		}
		klog.FromContext(ctx).V(1).Info("A step of a growth was taken", "claim", klog.KObj(claim), "persistentvolume", object.Name, "step", s.what)
	}
	return object, nil
}

// writeVolume patches a PersistentVolume and records the result in the ledger. If the result is
// unknown, the ledger keeps its promise.
func (c *Controller) writeVolume(ctx context.Context, object *corev1.PersistentVolume, s step) (*corev1.PersistentVolume, error) {
	annotations := map[string]any{}
	if s.growing != nil {
		annotations[pv.AnnotationGrowingTo] = orNothing(*s.growing)
	}
	if s.before != nil {
		text := ""
		if !s.before.IsZero() {
			text = s.before.String()
		}
		annotations[pv.AnnotationPreResizeCapacity] = orNothing(text)
	}
	body := map[string]any{"metadata": map[string]any{
		"uid": object.UID, "resourceVersion": object.ResourceVersion, "annotations": annotations,
	}}
	if s.capacity != nil {
		body["spec"] = map[string]any{"capacity": corev1.ResourceList{storage: *s.capacity}}
	}
	patch, err := json.Marshal(body)
	if err != nil {
		return object, err
	}
	now, err := c.Client.CoreV1().PersistentVolumes().Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		if !notDone(err) {
			c.Ledger.Unsure(object)
		}
		return object, err
	}
	c.Ledger.Written(now)
	return now, nil
}

// orNothing returns a value for a merge patch, in which null removes an entry.
func orNothing(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// notDone reports whether the API server has responded that it did not execute the request.
func notDone(err error) bool {
	answer := apierrors.APIStatus(nil)
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout
}

func (c *Controller) writeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, s status) (*corev1.PersistentVolumeClaim, error) {
	conditions := s.conditions
	if conditions == nil {
		conditions = []corev1.PersistentVolumeClaimCondition{}
	}
	body := map[string]any{
		"allocatedResourceStatuses": map[corev1.ResourceName]any{storage: orNothing(string(s.state))},
		"conditions":                conditions,
	}
	if s.allocated != nil {
		body["allocatedResources"] = corev1.ResourceList{storage: *s.allocated}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": body,
	})
	if err != nil {
		return claim, err
	}
	now, err := c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return claim, err
	}
	return now, nil
}
