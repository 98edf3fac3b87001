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

// replicaObject is the PersistentVolume of a replica that may go.
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

// newReplicaRig has a node that is full with a replica, which carries its label, and a
// promise that needs its room.
func newReplicaRig(t *testing.T) *rig {
	r := newRig(t)
	r.volume(replicaName, volume.Ready, 60, func(v *inventory.Volume) { v.Kind = volume.Dataset })
	r.api.put(replicaObject(60))
	r.api.put(object("new", 70))
	r.api.with(func() { r.api.nodeLabels = map[string]string{replica.NodeLabel(datasetHash): replica.NodeLabelValue} })
	return r
}

// said gives an annotation of the replica.
func (r *rig) saidOf(annotation string) string {
	if o := r.api.volume(replicaPV); o != nil {
		return o.Annotations[annotation]
	}
	return ""
}

// unlabel is the controller's first part: it takes the label away and says so.
func (r *rig) unlabel() {
	r.api.with(func() {
		r.api.nodeLabels = nil
		o := r.api.volumes[replicaPV].DeepCopy()
		o.Annotations[replica.AnnotationUnlabelled] = r.clock.now().UTC().Format(time.RFC3339)
		r.api.volumes[replicaPV] = o
		r.api.changed("MODIFIED", o)
	})
}

// deleteClaim is its second part.
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

// pod puts one that uses a claim on the node, for whoever lists; the watch shows it
// where told is set.
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

// untilUnlabelled brings the eviction to where the daemon looks for pods.
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
