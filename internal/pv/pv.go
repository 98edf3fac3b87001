// Package pv is what flexlvm writes on a PersistentVolume beside its spec: the
// contract between the provisioner, which writes it, and the node daemon, which
// reads it without knowing the StorageClass (the class may be gone by then).
package pv

const (
	// Driver is the FlexVolume driver of every flexlvm PersistentVolume.
	Driver = "flexlvm.io/flexlvm"
	// Provisioner is what a StorageClass names to get its volumes from us.
	Provisioner = "flexlvm.io"
	// FSType is the only file system that the driver makes.
	FSType = "xfs"

	// LabelNode holds NodeLabelValue of the node that carries the volume, so that
	// a node can watch its own PersistentVolumes and no others.
	LabelNode = "flexlvm.io/node"
	// Finalizer keeps the object while a node may still hold the logical volume.
	// What has taken the volume back on the node drops it; where the node is lost,
	// nobody can, and the provisioner does.
	Finalizer = "flexlvm.io/volume"
	// AnnotationCharged is what the volume takes from its pool, in decimal bytes:
	// the size that was asked for and the file system's overhead.
	AnnotationCharged = "flexlvm.io/charged-bytes"
	// AnnotationRatio holds a volume.Ratio: how many times over the thin pool is
	// promised that the volume lies in. It is absent where that is once.
	AnnotationRatio = "flexlvm.io/overprovision-ratio"
	// AnnotationReclaim holds a volume.Reclaim.
	AnnotationReclaim = "flexlvm.io/reclaim"
	// AnnotationWipe holds a volume.Wipe.
	AnnotationWipe = "flexlvm.io/wipe"
	// AnnotationOnNodeLoss holds a volume.OnNodeLoss.
	AnnotationOnNodeLoss = "flexlvm.io/on-node-loss"
	// AnnotationIOLimits holds the text of volume.IOLimits, and is absent where
	// nothing is limited. It is no option of the volume: the driver takes no part,
	// and an operator may change it while the volume is in use.
	AnnotationIOLimits = "flexlvm.io/io-limits"
	// AnnotationProvisionedBy is Kubernetes' own: where it names a provisioner,
	// kube-controller-manager leaves the volume of a deleted claim to it. Without,
	// it looks for a plugin that can delete the volume, finds none, and calls the
	// volume Failed.
	AnnotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnotationStorageProvisioner is Kubernetes' own, too: by it kube-controller-manager
	// says who provisions a claim.
	AnnotationStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnotationStorageProvisionerBeta is its former name.
	AnnotationStorageProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
)
