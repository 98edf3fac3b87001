package persistentvolume

import (
	"cmp"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// IsOurs reports whether one of flexlvm's drivers serves a PersistentVolume.
func IsOurs(object *corev1.PersistentVolume) bool { return DoorOf(object) != "" }

// DoorOf returns the door of a PersistentVolume; empty if it is not flexlvm's.
func DoorOf(object *corev1.PersistentVolume) pv.Door {
	switch s := object.Spec; {
	case s.FlexVolume != nil && s.FlexVolume.Driver == pv.Driver:
		return pv.Flex
	case s.CSI != nil && s.CSI.Driver == pv.Provisioner:
		return pv.CSI
	}
	return ""
}

// Options returns the options of the volume; nil if the PersistentVolume is not flexlvm's.
func Options(object *corev1.PersistentVolume) map[string]string {
	switch DoorOf(object) {
	case pv.Flex:
		return object.Spec.FlexVolume.Options
	case pv.CSI:
		out := maps.Clone(object.Spec.CSI.VolumeAttributes)
		delete(out, pv.AttributeNamespace)
		return out
	}
	return nil
}

// ReadersSource returns the volume source by which the pods of a namespace read the dataset whose
// volume these options name. kubelet does not change the group of its files to each pod's fsGroup: for
// FlexVolume because the source is read-only, for CSI because the PersistentVolume is only
// ReadOnlyMany, which the CSIDriver's fsGroupPolicy respects.
func ReadersSource(door pv.Door, options map[string]string, namespace string) corev1.PersistentVolumeSource {
	if door == pv.CSI {
		handle := pv.Handle(volume.Group(options[volume.OptionGroup]), volume.Name(options[volume.OptionVolume]), true)
		return csiSource(handle, pv.Attributes(options, namespace), true)
	}
	return flexSource(options, true)
}

// StripSource returns the part of the volume source that Parse reads, or for another CSI driver just its
// name, which the provisioning library needs.
func StripSource(object *corev1.PersistentVolume) corev1.PersistentVolumeSource {
	switch DoorOf(object) {
	case pv.Flex:
		return flexSource(object.Spec.FlexVolume.Options, false)
	case pv.CSI:
		return csiSource(object.Spec.CSI.VolumeHandle, object.Spec.CSI.VolumeAttributes, false)
	}
	if csi := object.Spec.CSI; csi != nil {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: csi.Driver}}
	}
	return corev1.PersistentVolumeSource{}
}

// source returns the volume source of the described volume.
func source(d pv.Description) corev1.PersistentVolumeSource {
	if d.Door == pv.CSI {
		s := csiSource(d.Handle(), d.Attributes(), false)
		s.CSI.NodePublishSecretRef, s.CSI.NodeExpandSecretRef = secretRef(d.Secrets.Publish), secretRef(d.Secrets.Expand)
		return s
	}
	return flexSource(d.Options(), false)
}

func secretRef(r pv.SecretRef) *corev1.SecretReference {
	if r == (pv.SecretRef{}) {
		return nil
	}
	return &corev1.SecretReference{Namespace: r.Namespace, Name: r.Name}
}

func flexSource(options map[string]string, readOnly bool) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{
		FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: pv.Driver, FSType: fsType(options), ReadOnly: readOnly, Options: options},
	}
}

func csiSource(handle string, attributes map[string]string, readOnly bool) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: pv.Provisioner, VolumeHandle: handle, FSType: fsType(attributes), ReadOnly: readOnly, VolumeAttributes: attributes},
	}
}

// FSType returns the file system that a volume is formatted with; empty for a raw block volume.
func FSType(object *corev1.PersistentVolume) string { return fsType(Options(object)) }

// ModeOf returns the mode that a volume is created with.
func ModeOf(object *corev1.PersistentVolume) string {
	return cmp.Or(Options(object)[volume.OptionVolumeMode], volume.ModeFilesystem)
}

// fsType returns the fsType field of a volume source, which repeats the options.
func fsType(options map[string]string) string {
	if options[volume.OptionVolumeMode] == volume.ModeBlock {
		return ""
	}
	return cmp.Or(options[volume.OptionFSType], volume.XFS.String())
}

// named returns the options and the name of the volume, and checks that the handle of a CSI volume
// matches its attributes. The driver derives the same name: for FlexVolumes from the option, or else
// from the PersistentVolume's own name; for CSI volumes from the handle.
func named(object *corev1.PersistentVolume) (options map[string]string, name volume.Name, err error) {
	options = Options(object)
	if DoorOf(object) == pv.Flex {
		field, text := "metadata.name", object.Name
		if given, there := options[volume.OptionVolume]; there {
			field, text = volume.OptionVolume, given
		}
		name, err = volume.ParseName(field, text)
		return options, name, err
	}
	csi := object.Spec.CSI
	g, name, readers, err := pv.ParseHandle("spec.csi.volumeHandle", csi.VolumeHandle)
	if err != nil {
		return nil, "", err
	}
	if g != volume.Group(options[volume.OptionGroup]) || name != volume.Name(cmp.Or(options[volume.OptionVolume], string(name))) || readers != (options[volume.OptionReadOnly] == "true") {
		return nil, "", &volume.FieldError{Field: "spec.csi.volumeHandle", Value: csi.VolumeHandle, Reason: "names another volume than spec.csi.volumeAttributes"}
	}
	if _, err := volume.ParseNamespace("spec.csi.volumeAttributes."+pv.AttributeNamespace, csi.VolumeAttributes[pv.AttributeNamespace]); err != nil {
		return nil, "", err
	}
	return options, name, nil
}

// foreign returns the error for a PersistentVolume that is not flexlvm's.
func foreign(object *corev1.PersistentVolume) error {
	const advice = "; remove the label " + pv.LabelNode
	switch s := object.Spec; {
	case s.FlexVolume != nil:
		return &volume.FieldError{Field: "spec.flexVolume.driver", Value: s.FlexVolume.Driver, Reason: "is not flexlvm's" + advice}
	case s.CSI != nil:
		return &volume.FieldError{Field: "spec.csi.driver", Value: s.CSI.Driver, Reason: "is not flexlvm's" + advice}
	}
	return &volume.FieldError{Field: "spec.flexVolume", Reason: "is missing, and so is spec.csi: this is no volume of flexlvm" + advice}
}

// NamesOf returns the names of the volumes that a PersistentVolume which Parse rejects may refer to, including the
// source that it may still have to be copied from. The PersistentVolume need not be flexlvm's: a superfluous name
// only protects one more volume.
func NamesOf(object *corev1.PersistentVolume) []string {
	names := []string{object.Name}
	add := func(name string) {
		if name != "" && name != object.Name {
			names = append(names, name)
		}
	}
	if flex := object.Spec.FlexVolume; flex != nil {
		add(flex.Options[volume.OptionVolume])
		add(flex.Options[volume.OptionCloneOf])
	}
	if csi := object.Spec.CSI; csi != nil {
		add(csi.VolumeAttributes[volume.OptionVolume])
		add(csi.VolumeAttributes[volume.OptionCloneOf])
		for part := range strings.SplitSeq(csi.VolumeHandle, "/") {
			add(part)
		}
	}
	return names
}
