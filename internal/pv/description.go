package pv

import (
	"strconv"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Description is all that a flexlvm PersistentVolume says of its volume, without the
// types of Kubernetes: the driver, which also writes PersistentVolumes (`flexlvm volumes
// undelete`), would take twice as long for each call if it linked them.
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

// Labels of the PersistentVolume.
func (d Description) Labels() map[string]string {
	return map[string]string{LabelNode: NodeLabelValue(d.Node)}
}

// Annotations of the PersistentVolume, but for the one by which Kubernetes knows its
// provisioner.
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

// Options are what the driver is given when the volume is mounted. They name the volume
// only where it is not called as its PersistentVolume.
func (d Description) Options() map[string]string {
	out := d.Spec.Options()
	if string(d.Spec.Name) != d.Name {
		out[volume.OptionVolume] = string(d.Spec.Name)
	}
	return out
}
