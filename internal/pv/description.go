package pv

import (
	"strconv"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Description is all that a flexlvm PersistentVolume says about its volume, without the
// types of Kubernetes: linking them would double the time of each call of the driver,
// which also writes PersistentVolumes (`flexlvm volumes undelete`).
type Description struct {
	Name     string // of the PersistentVolume
	Node     string // the node's name
	Hostname string // the value of the node's label kubernetes.io/hostname
	Spec     volume.Spec
	// Charged is what the volume takes from its pool.
	Charged    volume.Bytes
	Disposal   volume.Disposal
	OnNodeLoss volume.OnNodeLoss
	IOLimits   volume.IOLimits
}

// Labels returns the labels of the PersistentVolume.
func (d Description) Labels() map[string]string {
	return map[string]string{LabelNode: NodeLabelValue(d.Node)}
}

// Annotations returns the annotations of the PersistentVolume, without Kubernetes' own
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
	return out
}

// Options returns the options that the driver gets on a mount. They name the volume only
// if its name differs from the PersistentVolume's.
func (d Description) Options() map[string]string {
	out := d.Spec.Options()
	if string(d.Spec.Name) != d.Name {
		out[volume.OptionVolume] = string(d.Spec.Name)
	}
	return out
}
