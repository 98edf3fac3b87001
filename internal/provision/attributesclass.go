package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// attributesClass returns the name of the VolumeAttributesClass that a claim requests, or "".
func attributesClass(claim *corev1.PersistentVolumeClaim) string {
	if name := claim.Spec.VolumeAttributesClassName; name != nil {
		return *name
	}
	return ""
}

// limits returns the initial IO limits of a volume: those of the claim's VolumeAttributesClass, if it
// names one, and otherwise those of its StorageClass. The controller service (package csicontroller)
// applies later changes.
func (p *Provisioner) limits(ctx context.Context, claim *corev1.PersistentVolumeClaim, ofClass volume.IOLimits) (volume.IOLimits, error) {
	name := attributesClass(claim)
	if name == "" {
		return ofClass, nil
	}
	class, err := p.Listers.Live.Attributes(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return volume.IOLimits{}, fmt.Errorf("the VolumeAttributesClass %q does not exist; create it; the claim is retried", name)
	case err != nil:
		return volume.IOLimits{}, fmt.Errorf("get VolumeAttributesClass %q: %w", name, err)
	}
	var wrong controlplane.Problems
	if class.DriverName != pv.Provisioner {
		wrong.Add(fmt.Sprintf("VolumeAttributesClass %q is for the driver %q, and the class of the claim for %q; name one of %[3]s, or leave volumeAttributesClassName out", name, class.DriverName, pv.Provisioner))
		return volume.IOLimits{}, wrong.Refusal()
	}
	limits, err := controlplane.ParseAttributes(class.Parameters)
	if err != nil {
		wrong.Add(fmt.Sprintf("VolumeAttributesClass %q: %s; its parameters cannot be changed, create it again", name, err))
	}
	return limits, wrong.Refusal()
}

// attributesNow returns a function that reads a VolumeAttributesClass from the API server. Few claims
// name one, so there is no watch, which would also fail on an API server without the resource.
func attributesNow(client kubernetes.Interface) func(ctx context.Context, name string) (*storagev1.VolumeAttributesClass, error) {
	return func(ctx context.Context, name string) (*storagev1.VolumeAttributesClass, error) {
		return client.StorageV1().VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	}
}
