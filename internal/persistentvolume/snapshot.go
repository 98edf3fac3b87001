package persistentvolume

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// Snapshot returns the PersistentVolume, called name, that stands for a snapshot of the volume
// of another, and what its node makes of it: a thin one of a thin volume, of others one with a
// store of its own, as reserve says. It lies where that one does, and is kept for a
// claim that there cannot be, so that no claim is ever bound to it; only its deletion gives the
// snapshot up. See
// docs/decisions/019-snapshots-are-persistentvolumes.md.
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

// Grouped marks the PersistentVolumes of snapshots as those of a group, which is taken at one
// instant.
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

// chargedFor returns what a snapshot is charged. The store of one is as large as its source really
// is, which may be more than its size tells: rounded up to its stripes, or adopted.
func chargedFor(spec volume.Spec, source *Volume) volume.Bytes {
	charged := spec.Charge()
	if spec.CopyOnWrite() {
		store, _ := volume.COWStore(source.Shape.DeviceOf(source.Charge().Noted), volume.DefaultExtent, spec.Reserve)
		charged = max(charged, store)
	}
	return charged
}

// snapshotOf returns the volume of a snapshot with what its PersistentVolume says besides.
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

// takenWith returns a snapshot with the size that its source had when it was taken. That may have
// grown since the snapshot was asked for, or not have come to the size yet that it was promised.
// What a store takes, the node that has made it has noted.
func (v Volume) takenWith(size volume.Bytes) Volume {
	if size < v.Size {
		v.Size = size
		if !v.CopyOnWrite() {
			v.Charged = v.Shape.Takes(v.DeviceSize(size), volume.DefaultExtent)
		}
	}
	return v.Grown(size)
}

// IsSnapshot reports whether one of flexlvm's PersistentVolumes stands for a snapshot.
func IsSnapshot(object *corev1.PersistentVolume) bool {
	return DoorOf(object) == pv.CSI && Options(object)[volume.OptionKind] == string(volume.Snapshot)
}

// TakenAt returns the moment that a snapshot is of; false before it is taken.
func TakenAt(object *corev1.PersistentVolume) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339, object.Annotations[pv.AnnotationSnapshotTaken])
	return at, err == nil
}

// Taken returns the annotations by which a node says that it has taken a snapshot.
func Taken(at time.Time, size volume.Bytes) map[string]*string {
	when, bytes := at.UTC().Format(time.RFC3339), strconv.FormatInt(int64(size), 10)
	return map[string]*string{pv.AnnotationSnapshotTaken: &when, pv.AnnotationSnapshotSize: &bytes, pv.AnnotationSnapshotProblem: nil}
}

// Stored is Taken for a copy-on-write snapshot whose store takes so much of its pool. It was charged
// by what its source was promised, from which what that has may differ.
func Stored(at time.Time, size, takes volume.Bytes) map[string]*string {
	says, bytes := Taken(at, size), strconv.FormatInt(int64(takes), 10)
	says[pv.AnnotationCharged] = &bytes
	return says
}

// NotTaken returns the annotation by which a node says why it has not, or why one that it has
// taken holds nothing any more.
func NotTaken(why string) map[string]*string {
	return map[string]*string{pv.AnnotationSnapshotProblem: &why}
}
