// Package undelete decides how a volume whose claim was deleted is restored: on the node (`flexlvm volumes
// undelete`) and through the API (`kubectl flexlvm undelete`). It does no I/O and uses no types of Kubernetes,
// because the FlexVolume driver links it.
package undelete

import (
	"cmp"
	"fmt"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Request holds the properties of the restored volume that its tags do not record.
type Request struct {
	Node     string // the node's name in the cluster
	Hostname string // its label kubernetes.io/hostname
	Claim    string // empty: the volume's name
	Class    string // empty: none
	Policy   string // reclaim policy
	Door     pv.Door
	Ratio    volume.Ratio // of the volume's thin pool
	Inodes   int64        // limit; 0: none
	// OnNodeLoss defaults to Keep.
	OnNodeLoss   volume.OnNodeLoss
	IOLimits     volume.IOLimits
	Trim         volume.Trim
	MountOptions []volume.MountOption // for CSI volumes only
	// Secret holds the key of an encrypted volume.
	Secret pv.SecretRef
}

// Manifest returns a PersistentVolume and a claim for a volume that has lost both. The PersistentVolume names
// the volume's file system, so an empty volume never takes its place. Manifest rejects anything that the API
// server or the driver would reject later, when the volume has been restored and a user is waiting for it.
func Manifest(v inventory.Volume, r Request) (pv.Manifest, error) {
	if _, err := pv.ParseObjectName("volume", string(v.Name)); err != nil {
		return pv.Manifest{}, fmt.Errorf("%w, so no PersistentVolume can have this name; rename the volume first (`lvrename %s %s NEW`)", err, v.Group, v.Name)
	}
	spec := volume.Spec{
		Group: v.Group, GroupUUID: v.GroupUUID, Name: v.Name, Size: v.Size, Kind: v.Kind, Cluster: v.Cluster, Namespace: v.Namespace, FS: v.FS,
		// If the layout is not one of flexlvm's, any valid one does, because an existing volume is mounted as
		// it is.
		Layout: cmp.Or(v.Layout, volume.Linear), Stripes: v.Stripes, StripeKiB: v.StripeKiB, Mirrors: v.Mirrors, ThinPool: v.ThinPool, DirectoryPool: v.DirectoryPool,
		Ratio: r.Ratio, Inodes: r.Inodes, FSType: v.FSType, Encrypted: v.Encrypted,
	}
	if err := mountable(v, r); err != nil {
		return pv.Manifest{}, err
	}
	if err := spec.Validate(); err != nil {
		return pv.Manifest{}, fmt.Errorf("restore volume %s: %w", v.FullName(), err)
	}
	return pv.Manifest{
		Description: pv.Description{
			Name: string(v.Name), Node: r.Node, Hostname: r.Hostname, Door: r.Door, Spec: spec,
			Charged:    r.Ratio.Of(max(v.Allocated, v.AllocatedWhenFull)),
			Disposal:   volume.Disposal{Reclaim: cmp.Or(v.Reclaim, volume.ReclaimLazy), Wipe: cmp.Or(v.Wipe, volume.WipeNone)},
			OnNodeLoss: cmp.Or(r.OnNodeLoss, volume.OnNodeLossKeep), IOLimits: r.IOLimits, Trim: r.Trim, MountOptions: r.MountOptions,
			Secrets: pv.Secrets{Publish: r.Secret, Expand: r.Secret},
		},
		Policy: r.Policy, Class: r.Class,
		Namespace: v.Namespace, Claim: cmp.Or(r.Claim, string(v.Name)),
	}, nil
}

// mountable returns an error if the restored volume could not be mounted.
func mountable(v inventory.Volume, r Request) error {
	none := r.Secret == pv.SecretRef{}
	switch {
	case !v.Encrypted && !none:
		return fmt.Errorf("volume %s is not encrypted, so it needs no Secret; leave --secret out", v.FullName())
	case v.Encrypted && none:
		return fmt.Errorf("volume %s is encrypted; name the Secret with its key with --secret NAMESPACE/NAME (its StorageClass names the Secret)", v.FullName())
	case v.FSType == volume.Raw && r.Door != pv.CSI:
		return fmt.Errorf("volume %s has volumeMode Block, which only the CSI driver supports; set --door csi", v.FullName())
	case v.Encrypted && r.Door != pv.CSI:
		return fmt.Errorf("volume %s is encrypted, which only the CSI driver supports; set --door csi", v.FullName())
	case len(r.MountOptions) > 0 && r.Door != pv.CSI:
		return fmt.Errorf("volume %s had the mount options %v, which only the CSI driver supports; set --door csi", v.FullName(), r.MountOptions)
	}
	return nil
}

// CheckRestorable returns an error if a volume cannot be restored with a claim. The error says why, and what to do
// instead.
func CheckRestorable(v inventory.Volume) error {
	if err := CheckComplete(v); err != nil {
		return err
	}
	if v.Kind == volume.Dataset {
		return fmt.Errorf("volume %s is a replica of a dataset, which its VolumeManager restores, not a claim. Create the VolumeManager again (`kubectl get volumemanagers -n %s`)", v.FullName(), v.Namespace)
	}
	return nil
}

// CheckComplete returns an error if a volume cannot be made ready for a PersistentVolume that still exists.
func CheckComplete(v inventory.Volume) error {
	switch {
	case v.CloneOfFS != "" && v.State != volume.Creating:
		return fmt.Errorf("volume %s is an unfinished copy of another volume, so there is nothing to restore. Create a new claim for the copy", v.FullName())
	case v.PartlyZeroed && v.State != volume.Creating:
		return fmt.Errorf("volume %s was deleted before it was completely zeroed: no pod has ever used it, so there is nothing to restore. Create a new claim", v.FullName())
	case v.Kind == volume.Snapshot:
		return fmt.Errorf("volume %s is a snapshot whose VolumeSnapshot is gone, and cannot be restored; if it is not needed, release it on its node (`flexlvm volumes forget %s`)", v.FullName(), v.Name)
	case v.State == volume.Creating:
		return fmt.Errorf("volume %s is in state creating: its first mount was interrupted or is still running, so nothing was deleted. Its next mount completes it, or the node daemon makes it ready if its file system is intact", v.FullName())
	}
	return nil
}
