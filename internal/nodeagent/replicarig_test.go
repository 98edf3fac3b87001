package nodeagent_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// replicaObject returns the PersistentVolume of a replica that may be evicted.
func replicaObject(size int, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	return object(replicaPV, size, append([]func(*corev1.PersistentVolume){func(o *corev1.PersistentVolume) {
		o.Labels[replica.LabelDataset], o.Labels[replica.LabelOwner] = datasetHash, "uid-of-vm"
		for name, value := range map[string]string{
			replica.AnnotationEviction: "LRU", replica.AnnotationComplete: replica.Complete,
			replica.AnnotationReaders: "vm-images", replica.AnnotationOwner: "vm", pv.AnnotationReclaim: "immediate",
		} {
			o.Annotations[name] = value
		}
		o.Spec.FlexVolume.Options[volume.OptionKind], o.Spec.FlexVolume.Options[volume.OptionVolume] = "dataset", replicaName
	}}, change...)...)
}

// newReplicaRig has a node with the label of a replica, which fills it, and a promised volume that needs the
// replica's room.
func newReplicaRig(t *testing.T) *rig {
	r := newRig(t)
	r.volume(replicaName, volume.Ready, 60, func(v *inventory.Volume) { v.Kind = volume.Dataset })
	r.api.put(replicaObject(60))
	r.api.put(object("new", 70))
	r.api.with(func() { r.api.nodeLabels = map[string]string{replica.NodeLabel(datasetHash): replica.NodeLabelValue} })
	return r
}

// saidOf returns an annotation of the replica's PersistentVolume.
func (r *rig) saidOf(annotation string) string {
	if o := r.api.volume(replicaPV); o != nil {
		return o.Annotations[annotation]
	}
	return ""
}

// unlabel does the controller's first step: it removes the node's label and records that.
func (r *rig) unlabel() {
	r.api.with(func() {
		r.api.nodeLabels = nil
		o := r.api.volumes[replicaPV].DeepCopy()
		o.Annotations[replica.AnnotationUnlabelled] = r.clock.now().UTC().Format(time.RFC3339)
		r.api.volumes[replicaPV] = o
		r.api.changed("MODIFIED", o)
	})
}

// deleteClaim does the controller's second step.
func (r *rig) deleteClaim() {
	r.api.with(func() {
		o := r.api.volumes[replicaPV].DeepCopy()
		o.Status.Phase = corev1.VolumeReleased
		r.api.volumes[replicaPV] = o
		r.api.changed("MODIFIED", o)
	})
}

func (r *rig) asked() bool { return r.saidOf(replica.AnnotationEvict) != "" }

func (r *rig) evictable() bool { return r.saidOf(replica.AnnotationEvictable) != "" }

// pod adds a pod that uses a claim to the node. Lists show it, and if told is set, the watch as well.
func (r *rig) pod(claim string, phase corev1.PodPhase, told bool) {
	r.api.with(func() {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "pod", UID: "uid-of-pod"},
			Spec: corev1.PodSpec{NodeName: "node-1", Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}}},
			Status: corev1.PodStatus{Phase: phase},
		}
		kind := "ADDED"
		if r.api.pods["pod"] != nil {
			kind = "MODIFIED"
		}
		if r.api.pods["pod"] = p; told {
			r.api.changed(kind, p)
		}
	})
}

// untilUnlabelled waits until the eviction is requested, and removes the label.
func (r *rig) untilUnlabelled() {
	r.t.Helper()
	r.eventually(r.asked, "the replica is not asked to go")
	r.unlabel()
	r.delivered()
	r.rounds(2)
}

func replicasOf(r *rig) string {
	for _, p := range r.status().Pools {
		return p.ReclaimableReplicas.String()
	}
	return ""
}
