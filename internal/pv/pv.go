// Package pv defines what flexlvm writes on a PersistentVolume beside its spec: the contract between
// the provisioner, which writes it, and the node daemon, which reads it without the StorageClass (which
// may have been deleted).
package pv

const (
	// Driver is the FlexVolume driver of every flexlvm PersistentVolume.
	Driver = "flexlvm.io/flexlvm"
	// Provisioner is the provisioner name in a StorageClass of flexlvm volumes.
	Provisioner = "flexlvm.io"

	// LabelNode holds NodeLabelValue of the node that holds the volume, so that a node can watch only
	// its own PersistentVolumes.
	LabelNode = "flexlvm.io/node"
	// LabelNodeGroup is set on nodes by an operator. It names the node's group, for which there may be
	// a template of the capacity that a new node will offer.
	LabelNodeGroup = "flexlvm.io/node-group"
	// AnnotationScaleDown is the cluster autoscaler's own: while it is "true", the autoscaler does not
	// remove the node.
	AnnotationScaleDown = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// AnnotationScaleDownOurs records that the provisioner has set AnnotationScaleDown.
	AnnotationScaleDownOurs = "flexlvm.io/scale-down-disabled"
	// Finalizer keeps the object while a node may still hold the logical volume. The node
	// daemon removes it once the volume is released there; if the node is lost, the
	// provisioner does.
	Finalizer = "flexlvm.io/volume"
	// AnnotationCharged is the space that the volume takes from its pool, in decimal bytes: the
	// requested size and the file system's overhead.
	AnnotationCharged = "flexlvm.io/charged-bytes"
	// AnnotationRatio holds the volume.Ratio of the volume's thin pool. It is absent if the ratio is 1.
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
	// AnnotationIOLimits holds the text of volume.IOLimits, and is absent if nothing is limited. It is
	// not an option of the volume: the driver does not use it, and an operator may change it while the
	// volume is in use.
	AnnotationIOLimits = "flexlvm.io/io-limits"
	// AnnotationGrowingTo is the size in decimal bytes that the volume is promised to grow to, while
	// room for that is being freed. Once the room is free, the capacity follows and the annotation is
	// removed.
	AnnotationGrowingTo = "flexlvm.io/growing-to"
	// AnnotationUndelete marks a PersistentVolume that an operator has created for a released volume:
	// the node daemon makes the volume ready again, and removes the mark. It holds the UUID of the
	// volume's file system, as volume.OptionFS does.
	AnnotationUndelete = "flexlvm.io/undelete"
	// AnnotationReplaces marks a placeholder PersistentVolume, which names a volume while the volume's
	// own PersistentVolume is created again for the other door. It records how to create that.
	AnnotationReplaces = "flexlvm.io/replaces"
	// AnnotationRetainedFor records on a PersistentVolume that is to be created again that its reclaim
	// policy was set to Retain for that purpose. It holds the UID of the object with
	// AnnotationReplaces.
	AnnotationRetainedFor = "flexlvm.io/retained-for"
	// AnnotationDeclared names the LocalVolume that a PersistentVolume was created for, as
	// NAMESPACE/NAME: its node creates the volume before a claim exists.
	AnnotationDeclared = "flexlvm.io/declared"
	// FinalizerLocalVolume keeps a LocalVolume until its PersistentVolume is deleted, or left to a claim.
	FinalizerLocalVolume = "flexlvm.io/local-volume"
	// LabelSnapshot is "true" on PersistentVolumes that stand for snapshots, to which no claim can be
	// bound.
	LabelSnapshot = "flexlvm.io/snapshot"
	// SnapshotClaim is the claim that the PersistentVolume of a snapshot names, so that no real claim
	// is bound to it: no claim can have this name.
	SnapshotClaim = "(snapshot)"
	// LabelSnapshotGroup is the ID of the group that a snapshot was taken with, at one instant.
	LabelSnapshotGroup = "flexlvm.io/snapshot-group"
	// AnnotationSnapshotMembers are the names of the PersistentVolumes of a snapshot group, separated
	// by commas. The node takes none of the snapshots before it has seen all of these.
	AnnotationSnapshotMembers = "flexlvm.io/snapshot-members"
	// AnnotationSnapshotTaken is the time at which a snapshot was taken, in RFC 3339. The node writes
	// it once the snapshot exists; from then on the snapshot is never taken again.
	AnnotationSnapshotTaken = "flexlvm.io/snapshot-taken"
	// AnnotationSnapshotSize is the size in decimal bytes that the source had at that time.
	AnnotationSnapshotSize = "flexlvm.io/snapshot-size"
	// AnnotationSnapshotProblem is why the node could not take the snapshot, or why a snapshot that it
	// has taken no longer has content.
	AnnotationSnapshotProblem = "flexlvm.io/snapshot-problem"
	// AnnotationPreResizeCapacity is Kubernetes' own: the claim's capacity before its volume began to
	// grow. A claim that is bound to the volume again takes its capacity from it.
	AnnotationPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnotationProvisionedBy is Kubernetes' own: if it names a provisioner, kube-controller-manager
	// leaves the volume of a deleted claim to that provisioner. Without it, kube-controller-manager
	// searches for a plugin that can delete the volume, finds none, and marks the volume Failed.
	AnnotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnotationStorageProvisioner is Kubernetes' own, too: kube-controller-manager sets it to the
	// claim's provisioner.
	AnnotationStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnotationStorageProvisionerBeta is the former name of AnnotationStorageProvisioner.
	AnnotationStorageProvisionerBeta = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnotationSelectedNode is where the scheduler names the node of a claim; only then is the volume
	// provisioned.
	AnnotationSelectedNode = "volume.kubernetes.io/selected-node"
)
