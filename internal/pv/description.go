package pv

import (
	"maps"
	"strconv"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Description is all that a flexlvm PersistentVolume records of its volume, without Kubernetes'
// types: linking them would double the time of each call of the driver, which also writes
// PersistentVolumes (`flexlvm volumes undelete`).
type Description struct {
	Name     string // of the PersistentVolume
	Node     string // the node's name
	Hostname string // the value of the node's label kubernetes.io/hostname
	Door     Door   // empty: Flex
	Spec     volume.Spec
	// Charged is the space that the volume takes from its pool.
	Charged    volume.Bytes
	Disposal   volume.Disposal
	OnNodeLoss volume.OnNodeLoss
	IOLimits   volume.IOLimits
	Trim       volume.Trim // empty: TrimAuto
	// MountOptions are the volume's mount options; only CSI volumes have them.
	MountOptions []volume.MountOption
	// Secrets are an encrypted volume's; only CSI volumes can be encrypted.
	Secrets Secrets
}

// Labels returns the labels of the PersistentVolume.
func (d Description) Labels() map[string]string {
	return map[string]string{LabelNode: NodeLabelValue(d.Node)}
}

// Annotations returns the annotations of the PersistentVolume, except for Kubernetes' own annotation
// that names the provisioner.
func (d Description) Annotations() map[string]string {
	out := map[string]string{
		AnnotationCharged:    strconv.FormatInt(int64(d.Charged), 10),
		AnnotationReclaim:    string(d.Disposal.Reclaim),
		AnnotationWipe:       string(d.Disposal.Wipe),
		AnnotationOnNodeLoss: string(d.OnNodeLoss),
	}
	if d.Spec.Ratio.Over() {
		out[AnnotationRatio] = d.Spec.Ratio.String()
	}
	if !d.IOLimits.IsZero() {
		out[AnnotationIOLimits] = d.IOLimits.String()
	}
	if d.Trim != "" && d.Trim != volume.TrimAuto {
		out[AnnotationTrim] = string(d.Trim)
	}
	return out
}

// Options returns the options that the driver receives at a mount. They name the volume only if its
// name differs from the PersistentVolume's.
func (d Description) Options() map[string]string {
	out := d.Spec.Options()
	if string(d.Spec.Name) != d.Name {
		out[volume.OptionVolume] = string(d.Spec.Name)
	}
	return out
}

// Handle returns the volume handle for the CSI driver.
func (d Description) Handle() string { return Handle(d.Spec.Group, d.Spec.Name, d.Spec.ReadOnly) }

// Attributes returns the attributes that the CSI driver receives at a mount: the options, and the
// namespace that owns the volume.
func (d Description) Attributes() map[string]string { return Attributes(d.Options(), d.Spec.Namespace) }

// Attributes returns the attributes of a CSI volume with these options.
func Attributes(options map[string]string, namespace string) map[string]string {
	out := maps.Clone(options)
	out[AttributeNamespace] = namespace
	return out
}
