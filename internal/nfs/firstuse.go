package nfs

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/pv"
)

// createFirst is create in an export in which no marks were found. If volumes of this provisioner lie in the export,
// the marks are missing because its server has not mounted the export's disk, or exports another directory. Then
// a directory made there would be hidden once the disk is mounted, and its mark would make the provisioner
// believe, until then, that the directories of all other volumes were disposed of.
func (p *Provisioner) createFirst(ctx context.Context, r request) (asked bool, state controller.ProvisioningState, err error) {
	unused, err := p.isUnused(ctx, r.place.export)
	if err != nil {
		return false, controller.ProvisioningNoChange, fmt.Errorf("check whether volumes lie in export %s, which has no marks: %w", r.place.export, err)
	}
	// Another claim may have made the first mark meanwhile, so the export is looked at again in any case.
	return p.create(ctx, r, unused)
}

// isUnused reports whether an export may be used for the first time: no PersistentVolume of this provisioner lies in
// it, and this process has made no directory in it, whose PersistentVolume may still be missing. The directories of
// other provisioners may be named alike (those of nfs-subdir-external-provisioner are), and Delete is never called for
// their volumes.
func (p *Provisioner) isUnused(ctx context.Context, e Export) (bool, error) {
	g := p.gates[e.String()]
	switch {
	case g.used.Load():
		return false, nil
	case g.listedLately():
		return true, nil
	}
	err := p.EachVolume(ctx, func(v *corev1.PersistentVolume) {
		// Velero restores a PersistentVolume without the annotation of its provisioner, but with this provisioner's own.
		if _, has := v.Annotations[AnnotationOnDelete]; !has && v.Annotations[pv.AnnotationProvisionedBy] != Name {
			return
		}
		if at, err := p.Exports.locate(v); err == nil && at.export == e {
			g.used.Store(true)
		}
	})
	if err != nil || g.used.Load() {
		return false, err
	}
	g.listed()
	return true, nil
}
