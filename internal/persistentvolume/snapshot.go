package persistentvolume

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Snapshot returns the PersistentVolume, called name, that stands for a snapshot of the volume of
// another PersistentVolume, and the spec by which its node creates it: a thin snapshot of a thin
// volume, otherwise a copy-on-write snapshot with this reserve. It is on its source's node and reserved
// for a claim that cannot exist, so that no claim is ever bound to it; only deleting it releases the
// snapshot. See docs/decisions/019-snapshots-are-persistentvolumes.md.
func Snapshot(of *corev1.PersistentVolume, name volume.Name, reserve volume.Reserve) (*corev1.PersistentVolume, volume.Spec, error) {
	source, err := Parse(of)
	if err != nil {
		return nil, volume.Spec{}, err
	}
	spec, err := specOf(of)
	if err != nil {
		return nil, volume.Spec{}, err
	}
	spec.Name, spec.CloneOf, spec.Kind, spec.FS = name, spec.Name, volume.Snapshot, ""
	spec.Size, spec.Namespace = source.Promised(), of.Spec.CSI.VolumeAttributes[pv.AttributeNamespace]
	spec.Reserve = reserve
	if spec.Layout == volume.Directory {
		return nil, volume.Spec{}, &volume.FieldError{Field: volume.OptionLayout, Value: string(spec.Layout), Reason: "has no snapshots: its volumes are directories of a file system that they share; copy the files, or use a class with another layout"}
	}
	if spec.Layout != volume.Thin {
		spec.Layout, spec.Stripes, spec.StripeKiB, spec.Mirrors = volume.Linear, 0, 0, 0
	}
	if err := spec.Validate(); err != nil {
		return nil, volume.Spec{}, err
	}
	object := New(pv.Description{
		Name: string(name), Door: pv.CSI, Spec: spec, Charged: chargedFor(spec, &source), OnNodeLoss: volume.OnNodeLossKeep,
		Disposal: volume.Disposal{Reclaim: volume.ReclaimImmediate, Wipe: source.Disposal.Wipe},
	}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.PersistentVolumeReclaimRetain)
	object.Labels = map[string]string{pv.LabelNode: of.Labels[pv.LabelNode], pv.LabelSnapshot: "true"}
	object.Spec.NodeAffinity = of.Spec.NodeAffinity.DeepCopy()
	object.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: spec.Namespace, Name: pv.SnapshotClaim}
	return object, spec, nil
}

// Grouped marks the PersistentVolumes of snapshots as a group, which is taken at one instant.
func Grouped(id string, objects []*corev1.PersistentVolume) {
	var members []string
	for _, o := range objects {
		members = append(members, o.Name)
	}
	for _, o := range objects {
		o.Labels[pv.LabelSnapshotGroup] = id
		o.Annotations[pv.AnnotationSnapshotMembers] = strings.Join(members, ",")
	}
}

// chargedFor returns the charge of a snapshot. A copy-on-write store follows the real size of its
// source's device, which may exceed what the source's size implies: rounded up to stripes, or adopted.
func chargedFor(spec volume.Spec, source *Volume) volume.Bytes {
	charged := spec.Charge()
	if spec.CopyOnWrite() {
		store, _ := volume.COWStore(source.Shape.LargestDevice(source.Charge().Noted), volume.DefaultExtent, spec.Reserve)
		charged = max(charged, store)
	}
	return charged
}

// snapshotOf returns v with the snapshot fields of its PersistentVolume.
func (v Volume) snapshotOf(object *corev1.PersistentVolume) Volume {
	v.ClaimNamespace = object.Spec.CSI.VolumeAttributes[pv.AttributeNamespace]
	if v.SnapshotGroup = object.Labels[pv.LabelSnapshotGroup]; v.SnapshotGroup != "" {
		v.Members = object.Annotations[pv.AnnotationSnapshotMembers]
	}
	if v.Taken = object.Annotations[pv.AnnotationSnapshotTaken] != ""; !v.Taken {
		return v
	}
	v.Lost = object.Annotations[pv.AnnotationSnapshotProblem]
	if taken, err := strconv.ParseInt(object.Annotations[pv.AnnotationSnapshotSize], 10, 64); err == nil && taken > 0 && taken <= int64(volume.MaxSize) {
		v = v.takenWith(volume.Bytes(taken))
	}
	return v
}

// takenWith returns a snapshot with the size that its source had when it was taken. The source may have
// grown since the snapshot was requested, or not have reached its promised size. The charge of a
// copy-on-write store stays: the node has recorded it (Stored).
func (v Volume) takenWith(size volume.Bytes) Volume {
	if size < v.Size {
		v.Size = size
		if !v.CopyOnWrite() {
			v.Charged = v.Shape.Takes(v.DeviceSize(size), volume.DefaultExtent)
		}
	}
	return v.Grown(size)
}

// IsSnapshot reports whether object is a flexlvm PersistentVolume that stands for a snapshot.
func IsSnapshot(object *corev1.PersistentVolume) bool {
	return DoorOf(object) == pv.CSI && Options(object)[volume.OptionKind] == string(volume.Snapshot)
}

// TakenAt returns the time at which the snapshot was taken; false if it is not taken yet.
func TakenAt(object *corev1.PersistentVolume) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, object.Annotations[pv.AnnotationSnapshotTaken])
	return at, err == nil
}

// Taken returns the annotations by which a node reports that it has taken a snapshot.
func Taken(at time.Time, size volume.Bytes) map[string]*string {
	when, bytes := at.UTC().Format(time.RFC3339), strconv.FormatInt(int64(size), 10)
	return map[string]*string{pv.AnnotationSnapshotTaken: &when, pv.AnnotationSnapshotSize: &bytes, pv.AnnotationSnapshotProblem: nil}
}

// Stored is Taken for a copy-on-write snapshot, whose store takes this much of its pool. The charge was
// based on the source's promised size, which may differ from its size when it was taken.
func Stored(at time.Time, size, takes volume.Bytes) map[string]*string {
	says, bytes := Taken(at, size), strconv.FormatInt(int64(takes), 10)
	says[pv.AnnotationCharged] = &bytes
	return says
}

// NotTaken returns the annotation by which a node reports why it has not taken a snapshot, or why a
// snapshot that it has taken no longer has content.
func NotTaken(why string) map[string]*string {
	return map[string]*string{pv.AnnotationSnapshotProblem: &why}
}
