// Package pv defines what flexlvm writes on a PersistentVolume beside its spec: the
// contract between the provisioner, which writes it, and the node daemon, which reads it
// without the StorageClass (the class may be gone by then).
package pv

const (
	// Driver is the FlexVolume driver of every flexlvm PersistentVolume.
	Driver = "flexlvm.io/flexlvm"
	// Provisioner is what a StorageClass names to get its volumes from us.
	Provisioner = "flexlvm.io"

	// LabelNode holds NodeLabelValue of the node that carries the volume, so that
	// a node can watch its own PersistentVolumes and no others.
	LabelNode = "flexlvm.io/node"
	// LabelNodeGroup is put on nodes by an operator: the node group that they belong to, for
	// which there may be a template of what a new node will offer.
	LabelNodeGroup = "flexlvm.io/node-group"
	// AnnotationScaleDown is the cluster autoscaler's own: it does not remove a node of
	// which it is "true".
	AnnotationScaleDown = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// AnnotationScaleDownOurs marks AnnotationScaleDown as put there by the provisioner.
	AnnotationScaleDownOurs = "flexlvm.io/scale-down-disabled"
	// Finalizer keeps the object while a node may still hold the logical volume. The node
	// daemon removes it once the volume is released there; if the node is lost, the
	// provisioner does.
	Finalizer = "flexlvm.io/volume"
	// AnnotationCharged is what the volume takes from its pool, in decimal bytes:
	// the size that was asked for and the file system's overhead.
	AnnotationCharged = "flexlvm.io/charged-bytes"
	// AnnotationRatio holds a volume.Ratio, that of the volume's thin pool. It is absent
	// if the ratio is 1.
	AnnotationRatio = "flexlvm.io/overprovision-ratio"
	// AnnotationReclaim holds a volume.Reclaim.
	AnnotationReclaim = "flexlvm.io/reclaim"
	// AnnotationWipe holds a volume.Wipe.
	AnnotationWipe = "flexlvm.io/wipe"
	// AnnotationTrim holds a volume.Trim, and is absent if that is TrimAuto. Like
	// AnnotationIOLimits it may be changed while the volume is in use.
	AnnotationTrim = "flexlvm.io/trim"
	// AnnotationOnNodeLoss holds a volume.OnNodeLoss.
	AnnotationOnNodeLoss = "flexlvm.io/on-node-loss"
	// AnnotationIOLimits holds the text of volume.IOLimits, and is absent if nothing is
	// limited. It is not an option of the volume: the driver does not use it, and an
	// operator may change it while the volume is in use.
	AnnotationIOLimits = "flexlvm.io/io-limits"
	// AnnotationGrowingTo is the size in decimal bytes that the volume is promised to grow
	// to, while room for that is being made. It is absent otherwise. The capacity follows
	// once the room is free, and the annotation goes.
	AnnotationGrowingTo = "flexlvm.io/growing-to"
	// AnnotationUndelete marks a PersistentVolume that a person has made for a volume that was
	// released: the node daemon makes the volume ready again, and removes the mark. It holds
	// the UUID of the volume's file system, as volume.OptionFS does.
	AnnotationUndelete = "flexlvm.io/undelete"
	// AnnotationReplaces marks a PersistentVolume that names a volume while the volume's own
	// PersistentVolume is made anew for the other door. It holds what that one is to be like.
	AnnotationReplaces = "flexlvm.io/replaces"
	// AnnotationRetainedFor says on a PersistentVolume that is made anew that its reclaim
	// policy was set to Retain for that: the UID of what has AnnotationReplaces.
	AnnotationRetainedFor = "flexlvm.io/retained-for"
	// AnnotationDeclared names the LocalVolume that a PersistentVolume was made for, as
	// NAMESPACE/NAME: its node makes the volume before any claim is there.
	AnnotationDeclared = "flexlvm.io/declared"
	// FinalizerLocalVolume keeps a LocalVolume until its PersistentVolume is given up.
	FinalizerLocalVolume = "flexlvm.io/local-volume"
	// LabelSnapshot is "true" on PersistentVolumes that stand for snapshots: no claim can be
	// bound to them.
	LabelSnapshot = "flexlvm.io/snapshot"
	// SnapshotClaim is the claim that such a PersistentVolume names, so that it is kept for it.
	// No claim can have this name.
	SnapshotClaim = "(snapshot)"
	// LabelSnapshotGroup is the ID of the group that a snapshot was taken with, at one instant.
	LabelSnapshotGroup = "flexlvm.io/snapshot-group"
	// AnnotationSnapshotMembers are the names of the PersistentVolumes of such a group, with commas
	// in between. Its node takes none before it has seen all.
	AnnotationSnapshotMembers = "flexlvm.io/snapshot-members"
	// AnnotationSnapshotTaken is the moment that a snapshot is of, in RFC 3339. Its node writes
	// it once the snapshot is taken; from then on it is never taken again.
	AnnotationSnapshotTaken = "flexlvm.io/snapshot-taken"
	// AnnotationSnapshotSize is the size in decimal bytes that the source had then.
	AnnotationSnapshotSize = "flexlvm.io/snapshot-size"
	// AnnotationSnapshotProblem is why the node could not take it, or why what it has taken holds
	// nothing any more.
	AnnotationSnapshotProblem = "flexlvm.io/snapshot-problem"
	// AnnotationPreResizeCapacity is Kubernetes' own: what a claim had before its volume
	// began to grow, from which a claim that is bound to the volume anew takes its capacity.
	AnnotationPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnotationProvisionedBy is Kubernetes' own: if it names a provisioner,
	// kube-controller-manager leaves the volume of a deleted claim to it. Without it,
	// kube-controller-manager looks for a plugin that can delete the volume, finds none,
	// and marks the volume Failed.
	AnnotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnotationStorageProvisioner is Kubernetes' own, too: kube-controller-manager sets
	// it to the provisioner of a claim.
	AnnotationStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnotationStorageProvisionerBeta is its former name.
	AnnotationStorageProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnotationSelectedNode is where the scheduler names the node of a claim; only then is its
	// volume asked for.
	AnnotationSelectedNode = "volume.kubernetes.io/selected-node"
)
