package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/eviction"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// grace is how long the daemon waits after it has seen its node's label gone before it checks for pods: the
// scheduler may have placed a pod just before, based on the old label.
const grace = 10 * time.Second

// An unlabelling is the removal of a replica's label from the node.
type unlabelling struct {
	volume types.UID // of the PersistentVolume
	at     time.Time // as recorded by the controller
}

// noteUnlabelled remembers since when each replica's label has been gone; a new process waits again.
func (d *Daemon) noteUnlabelled(f observation) {
	seen := map[unlabelling]time.Time{}
	for _, m := range f.moves {
		if m.Step == eviction.StepConfirm {
			key := unlabellingOf(m)
			since, known := d.unlabelled[key]
			if !known {
				since = f.at
			}
			seen[key] = since
		}
	}
	d.unlabelled = seen
}

func unlabellingOf(m eviction.Move) unlabelling {
	return unlabelling{m.PersistentVolume.UID, m.PersistentVolume.Replica.Unlabelled}
}

// due returns the moves of a round that may be made now.
func (d *Daemon) due(f observation) (out []eviction.Move) {
	for _, m := range f.moves {
		if m.Step == eviction.StepConfirm {
			since, known := d.unlabelled[unlabellingOf(m)]
			if !known || f.at.Sub(since) < grace {
				continue
			}
		}
		if !d.stepRetries.waits(string(m.PersistentVolume.UID), f.at) {
			out = append(out, m)
		}
	}
	return out
}

// evictReplicas makes the moves of a round that are due. Each is one write, conditional on the PersistentVolume
// as observed by this round. Killed before or after a write, it leaves a state from which the next round goes
// on.
func (d *Daemon) evictReplicas(ctx context.Context, f observation) {
	if !f.confirmed {
		return
	}
	log := klog.FromContext(ctx)
	for _, m := range d.due(f) {
		if ctx.Err() != nil {
			return
		}
		id := string(m.PersistentVolume.UID)
		done, err := d.carryOutStep(ctx, f.objects[m.PersistentVolume.PV], m)
		if err != nil {
			b := d.stepRetries.add(id, d.cfg.Now(), err.Error())
			if !apierrors.IsConflict(err) && d.dedupe.note("replica eviction "+id, err.Error(), f.at) {
				log.Error(err, "The eviction of a replica failed; it is retried", "persistentvolume", m.PersistentVolume.PV, "step", m.Step, "in", b.delay)
			}
			continue
		}
		d.stepRetries.clear(id)
		d.noteUsed(m, done)
		d.dedupe.end("replica eviction " + id)
		d.out.Metrics.moved(done.Step)
		log.Info("A step in the eviction of a replica is done", "persistentvolume", m.PersistentVolume.PV, "step", done.Step, "why", done.Why)
	}
}

// noteUsed records whether a confirmation has found a pod and become a withdrawal. Such a replica is not requested
// again until its backoff has passed, so that meanwhile another one is evicted, or the shortfall is reported.
func (d *Daemon) noteUsed(m, done eviction.Move) {
	id := string(m.PersistentVolume.UID)
	switch {
	case m.Step == eviction.StepConfirm && done.Step == eviction.StepWithdraw:
		d.usedReplicas.add(id, d.cfg.Now(), done.Why)
	case done.Step == eviction.StepConfirm:
		d.usedReplicas.clear(id)
	}
}

// replicasInUse returns the UIDs of the PersistentVolumes in usedReplicas whose backoff has not passed.
func (d *Daemon) replicasInUse(objects map[string]*corev1.PersistentVolume, now time.Time) map[types.UID]bool {
	out := map[types.UID]bool{}
	for _, o := range objects {
		if d.usedReplicas.waits(string(o.UID), now) {
			out[o.UID] = true
		}
	}
	return out
}

// carryOutStep carries out the step of one move and returns what it did: a confirmation that finds a pod becomes a
// withdrawal.
func (d *Daemon) carryOutStep(ctx context.Context, object *corev1.PersistentVolume, m eviction.Move) (eviction.Move, error) {
	if object == nil || object.UID != m.PersistentVolume.UID {
		return m, fmt.Errorf("evict the replica of PersistentVolume %s: it is not in this round's list", m.PersistentVolume.PV)
	}
	if m.Step == eviction.StepConfirm {
		if err := d.checkUnlabelled(ctx, m.PersistentVolume); err != nil {
			return m, err
		}
		pod, err := d.findUsingPod(ctx, m.PersistentVolume)
		if err != nil {
			return m, err
		}
		if pod != "" {
			m.Step, m.Why = eviction.StepWithdraw, fmt.Sprintf("pod %s uses it", pod)
		}
	}
	now := d.cfg.Now().UTC().Format(time.RFC3339)
	change := map[string]*string{}
	switch m.Step {
	case eviction.StepAsk: // the traces of an earlier eviction do not apply to this one
		change[replica.AnnotationEvict], change[replica.AnnotationUnlabelled], change[replica.AnnotationEvictable] = &now, nil, nil
	case eviction.StepConfirm:
		change[replica.AnnotationEvictable] = &now
	case eviction.StepWithdraw:
		change[replica.AnnotationEvict], change[replica.AnnotationUnlabelled], change[replica.AnnotationEvictable] = nil, nil, nil
	}
	return m, d.api.Annotate(ctx, object, change)
}

// checkUnlabelled fails if the API server still has the node's label for a dataset, which attracts pods.
func (d *Daemon) checkUnlabelled(ctx context.Context, c persistentvolume.Volume) error {
	labels, err := d.api.NodeLabels(ctx, d.cfg.Node)
	if err != nil {
		return err
	}
	label := replica.NodeLabel(c.Replica.Dataset)
	if _, there := labels[label]; there {
		return fmt.Errorf("PersistentVolume %s records that label %s was removed from node %s, but it is still there", c.PV, label, d.cfg.Node)
	}
	return nil
}

// findUsingPod asks the API server for a pod that has not ended, is on this node or on its way here, and names a
// claim of the dataset: the replica's claim; the readers' claim, as named by the replica and by the claimRef of
// the readers' PersistentVolume; or the readers' claim of another namespace.
func (d *Daemon) findUsingPod(ctx context.Context, c persistentvolume.Volume) (pod string, err error) {
	claims := []eviction.ClaimKey{{Namespace: c.ClaimNamespace, Name: c.ClaimName}, {Namespace: c.ClaimNamespace, Name: c.Replica.Readers}}
	readers, err := d.api.Volume(ctx, replica.ReadersPV(c.Replica.Dataset))
	switch {
	case apierrors.IsNotFound(err): // then no claim reads through it
	case err != nil:
		return "", err
	case readers.Spec.ClaimRef != nil:
		claims = append(claims, eviction.ClaimKey{Namespace: readers.Spec.ClaimRef.Namespace, Name: readers.Spec.ClaimRef.Name})
	}
	others, err := d.api.VolumesLabelled(ctx, replica.LabelShared, c.Replica.Dataset)
	if err != nil {
		return "", err
	}
	for i := range others {
		if ref := others[i].Spec.ClaimRef; ref != nil {
			claims = append(claims, eviction.ClaimKey{Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	// Pods on their way come first: a pod that arrives in between is found among the pods of the node.
	if pod, err := d.findAssignedPod(ctx, claims); err != nil || pod != "" {
		return pod, err
	}
	err = d.api.Pods(ctx, d.cfg.Node, func(one *corev1.Pod) {
		if pod == "" && usesAny(one, claims) {
			pod = one.Namespace + "/" + one.Name
		}
	})
	return pod, err
}

// findAssignedPod asks the API server for a pod that names one of these claims and for which the scheduler has chosen
// this node. The choice may predate the label's removal, and the pod is bound only when all of its volumes are
// provisioned, which may take minutes. Meanwhile the node is recorded on the pod, or on a claim of it that has no
// volume yet.
//
// Thousands of pods may wait for a dataset. So their claims are read after the list, which fails if the next page is
// requested too late, and each claim is read only once.
func (d *Daemon) findAssignedPod(ctx context.Context, claims []eviction.ClaimKey) (pod string, err error) {
	waiting := map[eviction.ClaimKey]string{} // a pod for each claim that waiting pods use
	err = d.api.UnscheduledPods(ctx, corev1.NamespaceAll, func(one *corev1.Pod) {
		switch {
		case !usesAny(one, claims):
		case one.Status.NominatedNodeName == d.cfg.Node:
			pod = one.Namespace + "/" + one.Name
		default:
			addUser(waiting, one)
		}
	})
	if err != nil || pod != "" {
		return pod, err
	}
	for key, user := range waiting {
		if here, err := d.chosenFor(ctx, key); here || err != nil {
			return user, err
		}
	}
	return "", nil
}

// chosenFor reports whether the scheduler has chosen this node for a claim that has no volume yet. The annotation of
// a claim with a volume may be old.
func (d *Daemon) chosenFor(ctx context.Context, key eviction.ClaimKey) (bool, error) {
	claim, err := d.api.PersistentVolumeClaim(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) { // no node is chosen for a missing claim
		return false, nil
	}
	return err == nil && claim.Spec.VolumeName == "" && claim.Annotations[pv.AnnotationSelectedNode] == d.cfg.Node, err
}

// usesAny reports whether a pod that has not ended names one of these claims.
func usesAny(pod *corev1.Pod, claims []eviction.ClaimKey) bool {
	names := claimsOf(pod)
	return slices.ContainsFunc(claims, func(key eviction.ClaimKey) bool { return names[key] != "" })
}

// claimsOf returns the claims of a pod that has not ended.
func claimsOf(pod *corev1.Pod) map[eviction.ClaimKey]string {
	names := map[eviction.ClaimKey]string{}
	addUser(names, pod)
	return names
}

// addUser adds the claims of a pod that has not ended. A pod that is being deleted still runs.
func addUser(users map[eviction.ClaimKey]string, pod *corev1.Pod) {
	if kubeobject.PodEnded(pod) {
		return
	}
	for _, v := range pod.Spec.Volumes {
		if name := kubeobject.ClaimName(pod, v); name != "" {
			claim, user := eviction.ClaimKey{Namespace: pod.Namespace, Name: name}, pod.Namespace+"/"+pod.Name
			if other, there := users[claim]; !there || user < other {
				users[claim] = user
			}
		}
	}
}
