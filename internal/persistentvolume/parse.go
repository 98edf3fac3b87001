package persistentvolume

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Volume is what the API records of one flexlvm PersistentVolume and its claim.
type Volume struct {
	PV        string
	UID       types.UID
	Group     volume.Group
	GroupUUID string // empty: any group of that name
	Volume    volume.Name
	Cluster   string // may be empty
	Kind      volume.Kind
	Size      volume.Bytes // what the user may currently write
	Growing   volume.Bytes // the size that it is promised to grow to, if that is more than Size; otherwise 0
	Inodes    int64        // 0: no limit
	Shape     volume.Shape // as it will be created; LVM knows the shape of an existing volume
	// Charged is what the volume takes from its pool when it is created: the provisioner's charge, or
	// more if the claim has grown since. It excludes promised growth, which Charge includes.
	Charged volume.Bytes
	// FS is the UUID of the volume's existing file system; empty: it may be formatted.
	FS     string
	FSType volume.FSType
	// Encrypted: the content lies in a LUKS container, whose key each mount passes in.
	Encrypted bool
	// Undelete: if the volume was released, it is to be made ready again.
	Undelete bool
	CloneOf  volume.Name // the volume that it starts as a copy of, or empty
	// Taken: the snapshot has been taken, and is not taken again.
	Taken bool
	// Lost is why a snapshot that was taken no longer has content; empty while it has.
	Lost string
	// SnapshotGroup is the ID of the group that a snapshot is taken with, and Members are the group's
	// PersistentVolumes, separated by commas; both are empty for a snapshot without a group.
	SnapshotGroup, Members string
	// Reserve is the reserve of a copy-on-write snapshot.
	Reserve        volume.Reserve
	ClaimNamespace string // empty if the PersistentVolume names no claim
	ClaimName      string
	Phase          corev1.PersistentVolumePhase
	ReclaimPolicy  corev1.PersistentVolumeReclaimPolicy
	Deleting       bool
	HasFinalizer   bool // flexlvm's
	Disposal       volume.Disposal
	// IOLimits is the unparsed annotation: a malformed one must affect nothing but the limits.
	IOLimits string
	// Trim and OnNodeLoss are unparsed annotations, too.
	Trim, OnNodeLoss string
	// Declared: a LocalVolume asks for the volume, and its node creates it before a claim exists.
	Declared bool
	// Placeholder: the object stands in while the volume's own PersistentVolume is created again.
	Placeholder bool
	// Replica is zero if the volume is not a replica of a dataset.
	Replica Replica
}

// InGroup reports whether the volume belongs in the volume group with this UUID. A group of the same
// name with another UUID is not the one that the volume was created for.
func (v *Volume) InGroup(uuid string) bool { return v.GroupUUID == "" || v.GroupUUID == uuid }

// Pool returns the pool that holds the volume.
func (v *Volume) Pool() volume.PoolName { return v.Shape.Pool(v.Group) }

// Parse parses a PersistentVolume strictly: anything that it does not understand is an error, not a
// guess. A PersistentVolume that it cannot parse needs a person; until then, the volumes that the
// object may mean (NamesOf) count as wanted.
func Parse(object *corev1.PersistentVolume) (Volume, error) {
	v, err := parse(object)
	if err != nil {
		how := " until a person corrects the object, or removes its finalizer " + pv.Finalizer
		if errors.Is(err, volume.ErrUnknown) {
			how = ": " + volume.Upgrade
		}
		return Volume{}, fmt.Errorf("read PersistentVolume %q: %w; its volume is left alone%s", object.Name, err, how)
	}
	return v, nil
}

// Reads reports whether Parse reads this annotation. Caches may drop the others.
func Reads(annotation string) bool {
	switch annotation {
	case pv.AnnotationCharged, pv.AnnotationRatio, pv.AnnotationReclaim, pv.AnnotationWipe, pv.AnnotationIOLimits, pv.AnnotationTrim, pv.AnnotationOnNodeLoss, pv.AnnotationGrowingTo, pv.AnnotationUndelete, pv.AnnotationReplaces, pv.AnnotationDeclared,
		pv.AnnotationSnapshotMembers, pv.AnnotationSnapshotTaken, pv.AnnotationSnapshotSize, pv.AnnotationSnapshotProblem:
		return true
	}
	return slices.Contains(replicaAnnotations, annotation)
}

func parse(object *corev1.PersistentVolume) (Volume, error) {
	spec, err := specOf(object)
	if err != nil {
		return Volume{}, err
	}
	c := Volume{
		PV: object.Name, UID: object.UID,
		Group: spec.Group, GroupUUID: spec.GroupUUID, Volume: spec.Name,
		Cluster: spec.Cluster, Kind: spec.Kind, Inodes: spec.Inodes, Shape: spec.Shape(), CloneOf: spec.CloneOf, Reserve: spec.Reserve, FS: spec.FS, FSType: spec.FSType, Encrypted: spec.Encrypted,
		Deleting: object.DeletionTimestamp != nil, HasFinalizer: slices.Contains(object.Finalizers, pv.Finalizer), IOLimits: object.Annotations[pv.AnnotationIOLimits],
		Trim:        object.Annotations[pv.AnnotationTrim],
		OnNodeLoss:  object.Annotations[pv.AnnotationOnNodeLoss],
		Replica:     replicaOf(object, spec),
		Undelete:    spec.FS != "" && object.Annotations[pv.AnnotationUndelete] == spec.FS,
		Placeholder: object.Annotations[pv.AnnotationReplaces] != "",
		Declared:    object.Annotations[pv.AnnotationDeclared] != "",
	}
	if ref := object.Spec.ClaimRef; ref != nil {
		c.ClaimNamespace, c.ClaimName = ref.Namespace, ref.Name
	}
	if c.Phase, err = phaseOf(object); err != nil {
		return Volume{}, err
	}
	if c.ReclaimPolicy, err = policyOf(object); err != nil {
		return Volume{}, err
	}
	if c.Disposal, err = disposalOf(object); err != nil {
		return Volume{}, err
	}
	if c.Size, c.Charged, err = sizesOf(object, spec); err != nil {
		return Volume{}, err
	}
	if c.Kind == volume.Snapshot {
		c = c.snapshotOf(object)
	}
	c.Growing = growingOf(object, c.Size, c.Phase)
	return c, nil
}

// growingOf returns the size that the volume is promised to grow to, or 0. It never fails: the
// provisioner and the node both ignore a promise that they cannot parse. Only a bound claim can wait
// for a promise.
func growingOf(object *corev1.PersistentVolume, size volume.Bytes, phase corev1.PersistentVolumePhase) volume.Bytes {
	n, err := strconv.ParseInt(object.Annotations[pv.AnnotationGrowingTo], 10, 64)
	to := volume.Bytes(n)
	if err != nil || phase != corev1.VolumeBound || to <= size || to > volume.MaxSize {
		return 0
	}
	return to
}

// specOf parses the options, as the driver does when it mounts the volume.
func specOf(object *corev1.PersistentVolume) (volume.Spec, error) {
	if !IsOurs(object) {
		return volume.Spec{}, foreign(object)
	}
	options, name, err := named(object)
	if err != nil {
		return volume.Spec{}, err
	}
	spec, err := volume.ParseOptions(options)
	if err != nil {
		return volume.Spec{}, err
	}
	spec.Name = name
	if text, noted := object.Annotations[pv.AnnotationRatio]; noted && spec.Layout == volume.Thin {
		ratio, err := volume.ParseRatio(pv.AnnotationRatio, text)
		if err != nil {
			return volume.Spec{}, err
		}
		spec.Ratio = ratio
	}
	if spec.ReadOnly {
		// Such a PersistentVolume has no logical volume: it accounts for none and is charged for none.
		return volume.Spec{}, &volume.FieldError{Field: volume.OptionReadOnly, Value: "true", Reason: "is for the readers of a dataset, wherever it is; remove the label " + pv.LabelNode}
	}
	if spec.Kind == volume.Snapshot && (object.Spec.CSI == nil || object.Name != string(spec.Name)) {
		return volume.Spec{}, &volume.FieldError{Field: volume.OptionKind, Value: string(spec.Kind), Reason: "is only for PersistentVolumes of the CSI driver that are named after their volume"}
	}
	return spec, spec.Validate()
}

// phaseOf returns Pending if the API server has not set a phase yet.
func phaseOf(object *corev1.PersistentVolume) (corev1.PersistentVolumePhase, error) {
	switch p := object.Status.Phase; p {
	case "":
		return corev1.VolumePending, nil
	case corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased, corev1.VolumeFailed:
		return p, nil
	default:
		return "", &volume.FieldError{Field: "status.phase", Value: string(p), Reason: "is not known to this release"}
	}
}

// policyOf defaults to Retain, as the API server does.
func policyOf(object *corev1.PersistentVolume) (corev1.PersistentVolumeReclaimPolicy, error) {
	switch p := object.Spec.PersistentVolumeReclaimPolicy; p {
	case "":
		return corev1.PersistentVolumeReclaimRetain, nil
	case corev1.PersistentVolumeReclaimRetain, corev1.PersistentVolumeReclaimDelete:
		return p, nil
	default:
		return "", &volume.FieldError{Field: "spec.persistentVolumeReclaimPolicy", Value: string(p), Reason: "is not supported; patch it to Delete or Retain"}
	}
}

func disposalOf(object *corev1.PersistentVolume) (d volume.Disposal, err error) {
	if d.Reclaim, err = volume.ParseReclaim(pv.AnnotationReclaim, object.Annotations[pv.AnnotationReclaim]); err != nil {
		return volume.Disposal{}, err
	}
	if d.Wipe, err = volume.ParseWipe(pv.AnnotationWipe, object.Annotations[pv.AnnotationWipe]); err != nil {
		return volume.Disposal{}, err
	}
	return d, nil
}

// sizesOf returns what the user may write and what the pool must provide. The capacity follows growth;
// the option and the charge keep their original values, so a claim that grew before its first mount
// needs more than its charge.
func sizesOf(object *corev1.PersistentVolume, spec volume.Spec) (size, charged volume.Bytes, err error) {
	capacity := object.Spec.Capacity[corev1.ResourceStorage]
	switch {
	case capacity.Sign() <= 0:
		return 0, 0, &volume.FieldError{Field: "spec.capacity.storage", Value: capacity.String(), Reason: "must be greater than 0"}
	case capacity.CmpInt64(int64(volume.MaxSize)) > 0:
		return 0, 0, &volume.FieldError{Field: "spec.capacity.storage", Value: capacity.String(), Reason: fmt.Sprintf("is more than %s, the most that is supported", volume.MaxSize)}
	}
	born := spec.Size
	spec.Size = max(volume.Bytes(capacity.Value()), born)
	size = spec.Size
	text, noted := object.Annotations[pv.AnnotationCharged]
	if !noted {
		return size, spec.Charge(), nil
	}
	if charged, err = parseCharged(text); err != nil {
		return 0, 0, err
	}
	if size > born {
		charged = max(charged, spec.Charge())
	}
	return size, charged, nil
}

// parseCharged accepts more than volume.MaxSize: a charge includes overhead, and there may be several
// copies.
func parseCharged(text string) (volume.Bytes, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 || volume.Bytes(n) > volume.MaxCharge {
		return 0, &volume.FieldError{Field: pv.AnnotationCharged, Value: text, Reason: "is not a number of bytes; remove the annotation, and the charge is computed from the size"}
	}
	return volume.Bytes(n), nil
}
