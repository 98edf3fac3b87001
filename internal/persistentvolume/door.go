package persistentvolume

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// SourceFor returns the source for a PersistentVolume called name that reaches object's volume through
// the given door. It copies only the fields of object's source that Parse reads, so foreign additions
// are dropped.
func SourceFor(object *corev1.PersistentVolume, door pv.Door, name string) (corev1.PersistentVolumeSource, error) {
	from := DoorOf(object)
	if from == "" {
		return corev1.PersistentVolumeSource{}, foreign(object)
	}
	options, is, err := named(object)
	if err != nil {
		return corev1.PersistentVolumeSource{}, err
	}
	if door == pv.Flex && options[volume.OptionEncrypted] != "" {
		return corev1.PersistentVolumeSource{}, &volume.FieldError{Field: volume.OptionEncrypted, Value: options[volume.OptionEncrypted], Reason: "is for the CSI driver alone, to which kubelet passes the key"}
	}
	options = maps.Clone(options)
	delete(options, volume.OptionVolume)
	if string(is) != name {
		options[volume.OptionVolume] = string(is)
	}
	readOnly, namespace := false, ""
	if from == pv.CSI {
		readOnly, namespace = object.Spec.CSI.ReadOnly, object.Spec.CSI.VolumeAttributes[pv.AttributeNamespace]
	} else {
		readOnly = object.Spec.FlexVolume.ReadOnly
		if ref := object.Spec.ClaimRef; ref != nil {
			namespace = ref.Namespace
		}
	}
	if door == pv.Flex {
		return flexSource(options, readOnly), nil
	}
	if _, err := volume.ParseNamespace("spec.claimRef.namespace", namespace); err != nil {
		return corev1.PersistentVolumeSource{}, err
	}
	handle := pv.Handle(volume.Group(options[volume.OptionGroup]), is, false)
	return csiSource(handle, pv.Attributes(options, namespace), readOnly), nil
}
