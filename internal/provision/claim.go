package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// checkBlock rejects file system parameters of the class if the claim has no file system.
func (r Request) checkBlock(p Parameters, wrong *controlplane.Problems) {
	if !kubeobject.IsBlock(r.Claim.Spec.VolumeMode) {
		return
	}
	for _, name := range []string{volume.OptionFSType, parameterCSIFSType} {
		text, given := r.Class.Parameters[name]
		switch {
		case r.isLocal(name):
			wrong.Add(fmt.Sprintf("spec.parameters: %s %q does not belong to volumeMode Block, which has no file system; make another LocalVolume without it", name, text))
		case given:
			wrong.Add(fmt.Sprintf("%s %q of StorageClass %q does not belong to volumeMode Block, which has no file system; use a class without it", name, text, r.Class.Name))
		}
	}
	if p.Trim != volume.TrimAuto && p.Trim != volume.TrimNever {
		wrong.Add(fmt.Sprintf("%s %q of StorageClass %q does not belong to volumeMode Block, where only the pod knows what it does not use; use a class without it", parameterTrim, p.Trim, r.Class.Name))
	}
	if len(r.Class.MountOptions) > 0 {
		wrong.Add(fmt.Sprintf("mountOptions of StorageClass %q do not belong to volumeMode Block, which is not mounted; use a class without them", r.Class.Name))
	}
}

// checkClaim rejects features that a local volume does not have, or not through this door.
func checkClaim(claim *corev1.PersistentVolumeClaim, door pv.Door, wrong *controlplane.Problems) {
	spec := claim.Spec
	if kubeobject.IsBlock(claim.Spec.VolumeMode) && door != pv.CSI {
		wrong.Add("volumeMode Block is not supported: the kubelet gives pods no devices through FlexVolume drivers; use volumeMode Filesystem, or a class with door: csi")
	}
	for _, mode := range spec.AccessModes {
		checkAccessMode(mode, door, wrong)
	}
	if spec.Selector != nil {
		wrong.Add("spec.selector is not supported: a new volume has no labels to select by; leave the selector out, or name an existing PersistentVolume in spec.volumeName")
	}
	checkSource(claim, wrong)
	if class := attributesClass(claim); class != "" && door != pv.CSI {
		wrong.Add(fmt.Sprintf("volumeAttributesClassName %q is not supported: FlexVolumes cannot have any; leave it out, and set the limits in the class, or in the annotation %s of the PersistentVolume, or use a class with door: csi", class, pv.AnnotationIOLimits))
	}
}

func checkAccessMode(mode corev1.PersistentVolumeAccessMode, door pv.Door, wrong *controlplane.Problems) {
	switch mode {
	case corev1.ReadWriteOnce, corev1.ReadOnlyMany:
	case corev1.ReadWriteOncePod:
		if door == pv.CSI {
			return // the driver refuses a second mount
		}
		// The kubelet keys non-attachable volumes per pod, so it does not notice that another pod has
		// the volume; only the scheduler would enforce the mode.
		wrong.Add("access mode ReadWriteOncePod is not supported: the kubelet cannot enforce it for FlexVolumes; use ReadWriteOnce, or a class with door: csi")
	case corev1.ReadWriteMany:
		wrong.Add("access mode ReadWriteMany is not supported: the volume lives on the disk of one node; use ReadWriteOnce, which lets any number of pods on that node share it")
	default:
		wrong.Add(fmt.Sprintf("access mode %s is not supported; use ReadWriteOnce or ReadOnlyMany", mode))
	}
}

// mountOptions returns the mount options of a class; the FlexVolume door supports none.
func mountOptions(class *storagev1.StorageClass, door pv.Door) ([]volume.MountOption, error) {
	if len(class.MountOptions) > 0 && door != pv.CSI {
		return nil, fmt.Errorf("mountOptions of StorageClass %q are not supported: FlexVolumes cannot have any; create the class again without them, or with door: csi", class.Name)
	}
	return volume.ParseMountOptions(fmt.Sprintf("mountOptions of StorageClass %q", class.Name), class.MountOptions)
}

// claimSize returns the usable size, in whole file system blocks. field names the size in errors.
func claimSize(claim *corev1.PersistentVolumeClaim, field string) (volume.Bytes, error) {
	asked, ok := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok || asked.Sign() <= 0 {
		return 0, &volume.FieldError{Field: field, Reason: "must be greater than 0"}
	}
	if asked.CmpInt64(int64(volume.MaxSize)) > 0 {
		return 0, &volume.FieldError{Field: field, Value: asked.String(), Reason: fmt.Sprintf("is more than %s, the most that is supported", volume.MaxSize)}
	}
	size := volume.Bytes(asked.Value()).RoundUp(volume.Block)
	if limit, ok := claim.Spec.Resources.Limits[corev1.ResourceStorage]; ok && limit.CmpInt64(int64(size)) < 0 {
		return 0, &volume.FieldError{
			Field:  "spec.resources.limits.storage",
			Value:  limit.String(),
			Reason: fmt.Sprintf("is less than the request in whole blocks of %s, which is %d; raise it", volume.Block, int64(size)),
		}
	}
	return size, nil
}
