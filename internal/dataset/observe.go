package dataset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
)

// cacheView is everything that the caches hold about a VolumeManager.
type cacheView struct {
	claims  []corev1.PersistentVolumeClaim
	volumes []corev1.PersistentVolume // for consumers
	jobs    []batchv1.Job
	pods    []corev1.Pod
	nodes   []*corev1.Node

	asked    int                 // how often labelledOnce was called
	labelled map[string][]string // nodes by dataset label; nil: not listed

	observed []*Observed      // all volumes
	unasked  int              // volumes with running loaders that this pass has not come to
	asking   time.Duration    // how long loaders have been asked
	users    map[string]users // their pods by namespace, as far as consumersOnce has listed them
}

// list reads everything about a VolumeManager from the caches.
func (r *reconciler) list(ctx context.Context, owner *flexlvmv1.VolumeManager) (*cacheView, error) {
	claims, jobs, pods := &corev1.PersistentVolumeClaimList{}, &batchv1.JobList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{claims, jobs, pods} {
		err := r.cached.List(ctx, list, client.InNamespace(owner.Namespace), client.MatchingLabels{replica.LabelOwner: string(owner.UID)})
		if err != nil {
			return nil, fmt.Errorf("list %T of VolumeManager %s/%s: %w", list, owner.Namespace, owner.Name, err)
		}
	}
	volumes := &corev1.PersistentVolumeList{}
	if err := r.cached.List(ctx, volumes, client.MatchingLabels{replica.LabelOwner: string(owner.UID)}); err != nil {
		return nil, fmt.Errorf("list PersistentVolumes of VolumeManager %s/%s: %w", owner.Namespace, owner.Name, err)
	}
	nodes, err := r.Nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return &cacheView{claims: claims.Items, volumes: volumes.Items, jobs: jobs.Items, pods: pods.Items, nodes: nodes}, nil
}

// formerIDs returns the ids of volumes that have objects and are no longer in the spec.
func formerIDs(owner *flexlvmv1.VolumeManager, s *cacheView) []string {
	var ids []string
	add := func(object client.Object) { ids = append(ids, object.GetAnnotations()[replica.AnnotationVolumeID]) }
	for i := range s.claims {
		add(&s.claims[i])
	}
	for i := range s.jobs {
		add(&s.jobs[i])
	}
	for i := range s.volumes {
		add(&s.volumes[i])
	}
	slices.Sort(ids)
	return slices.DeleteFunc(slices.Compact(ids), func(id string) bool {
		return !replica.IsID(id) || slices.ContainsFunc(owner.Spec.All(), func(v flexlvmv1.VolumeConfig) bool { return v.ID == id })
	})
}

// observe returns the observed state of one volume, without the desired state.
func (r *reconciler) observe(ctx context.Context, owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, s *cacheView) (*Observed, error) {
	out := &Observed{
		Owner: owner, Config: v, Image: r.Image, Cluster: r.Cluster, Now: r.now(), StartedAt: r.startedAt,
		Replicas: map[int]*Replica{},
	}
	if err := r.addVolumes(ctx, out, s); err != nil {
		return nil, err
	}
	if err := r.addShares(ctx, out); err != nil {
		return nil, err
	}
	out.addLoaders(s)
	for _, node := range s.nodes {
		if _, has := node.Labels[out.label()]; has {
			out.Labelled = append(out.Labelled, node.Name)
		}
	}
	slices.Sort(out.Labelled)
	return out, nil
}

// addLoaders adds the Jobs of a volume and their pods. A pod that has not ended and whose Job is gone still
// writes.
func (s *Observed) addLoaders(from *cacheView) {
	lost := notReady(from.nodes, s.Now)
	for i := range from.jobs {
		if job := &from.jobs[i]; belongs(job, s.Owner, s.Config.ID) {
			pods := podsOf(job, from.pods)
			job, lags := asOfPods(job, pods, s.Now)
			if job.Labels[labelRole] == roleUpload {
				s.UploadJob, s.UploadPod = job, newestPod(pods)
			} else if rep := s.replicaOf(job); rep != nil {
				rep.Job, rep.Lags, rep.Pod, rep.Pods = job, lags, newestPod(pods), pods
				rep.NodeNotReady = rep.Pod != nil && !kubeobject.PodEnded(rep.Pod) && lost[rep.Pod.Spec.NodeName]
			}
		}
	}
	for i := range from.pods {
		pod := &from.pods[i]
		if kubeobject.PodEnded(pod) || !belongs(pod, s.Owner, s.Config.ID) {
			continue
		}
		if index, err := strconv.Atoi(pod.Labels[labelReplica]); err == nil && s.Replicas[index] != nil && s.Replicas[index].Job == nil {
			s.Replicas[index].Busy = true
		}
	}
}

// replicaOf returns the replica that a claim or a Job belongs to; nil if it belongs to none.
func (s *Observed) replicaOf(object client.Object) *Replica {
	index, err := strconv.Atoi(object.GetLabels()[labelReplica])
	if err != nil || object.GetName() != replicaName(s.Owner.Name, s.Config.ID, index) {
		return nil
	}
	if s.Replicas[index] == nil {
		s.Replicas[index] = &Replica{}
	}
	return s.Replicas[index]
}

func (r *reconciler) addVolumes(ctx context.Context, out *Observed, s *cacheView) error {
	volumes := &corev1.PersistentVolumeList{}
	if err := r.cached.List(ctx, volumes, client.MatchingLabels{replica.LabelDataset: out.hash()}); err != nil {
		return fmt.Errorf("list PersistentVolumes of dataset %s: %w", out.hash(), err)
	}
	byClaim := map[string]*corev1.PersistentVolume{}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		if v.Name == replica.ReadersPV(out.hash()) {
			out.Readers.Volume = v
		} else if v.Spec.ClaimRef != nil {
			byClaim[string(v.Spec.ClaimRef.UID)] = v
		}
	}
	for i := range s.claims {
		claim := &s.claims[i]
		if !belongs(claim, out.Owner, out.Config.ID) {
			continue
		}
		if claim.Name == replica.ReadersClaim(out.Owner.Name, out.Config.ID) {
			out.Readers.Claim = claim
		} else if rep := out.replicaOf(claim); rep != nil {
			rep.Claim, rep.Volume = claim, byClaim[string(claim.UID)]
			rep.Node = nodeOf(rep.Volume, s.nodes)
			rep.GroupMissing = r.groupMissing(rep.Node, rep.Volume)
		}
	}
	return nil
}

// nodeOf returns the node in the label of a PersistentVolume; empty if it is not known.
func nodeOf(volume *corev1.PersistentVolume, nodes []*corev1.Node) string {
	if volume == nil || volume.Labels[pv.LabelNode] == "" {
		return ""
	}
	for _, node := range nodes {
		if pv.NodeLabelValue(node.Name) == volume.Labels[pv.LabelNode] {
			return node.Name
		}
	}
	return ""
}

func podsOf(job *batchv1.Job, pods []corev1.Pod) (out []*corev1.Pod) {
	for i := range pods {
		if metav1.IsControlledBy(&pods[i], job) {
			out = append(out, &pods[i])
		}
	}
	return out
}

// newestPod returns the pod that was created last; nil if there are no pods.
func newestPod(pods []*corev1.Pod) *corev1.Pod {
	var out *corev1.Pod
	for _, pod := range pods {
		if out == nil || out.CreationTimestamp.Before(&pod.CreationTimestamp) {
			out = pod
		}
	}
	return out
}

// readSource adds the desired state. The error is for the user: it says what to write.
func (r *reconciler) readSource(ctx context.Context, observed *Observed, s *cacheView) error {
	var err error
	if observed.Source, err = ParseSource(observed.Config); err != nil {
		return err
	}
	if share := observed.Source.NFS; share != nil && !allowed(share, r.Shares) {
		return fmt.Errorf("server %q and path %q: the administrator does not allow this share for datasets (--dataset-nfs of the provisioner)", share.Server, share.Path)
	}
	observed.Wanted = true
	if observed.Source.Shared != nil {
		return r.readOffer(ctx, observed, s)
	}
	if !observed.Source.Copies() {
		return nil
	}
	nodes, err := classifyNodes(s.nodes, observed.Config.NodeAffinity, observed.Config.Tolerations, observed.Now)
	if err != nil {
		return err
	}
	observed.Fitting, observed.Matching, observed.NotMatching = nodes.fitting, nodes.matching, nodes.notMatching
	class, err := r.Classes.Get(observed.Source.Class)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("StorageClass %q does not exist; create it, or name another in the option storageClass", observed.Source.Class)
	case err != nil:
		return fmt.Errorf("get StorageClass %q: %w", observed.Source.Class, err)
	case class.Provisioner != pv.Provisioner:
		return fmt.Errorf("StorageClass %q is of provisioner %q; datasets need one of %s", class.Name, class.Provisioner, pv.Provisioner)
	}
	observed.Class = class.Parameters
	observed.Door = pv.ClassDoor(class.Parameters, r.Door)
	return nil
}

// release adds what has to be read from the API server before a release: which nodes carry the label, and which
// pods use the claims.
func (r *reconciler) release(ctx context.Context, observed *Observed, s *cacheView) error {
	var err error
	if observed.Labelled, err = r.labelledOnce(ctx, observed, s); err != nil {
		return err
	}
	if !observed.Upload && !observed.anyHeld() {
		return nil
	}
	found, at, err := r.consumersOnce(ctx, observed, s)
	if err != nil {
		return err
	}
	for _, one := range found {
		observed.Consumers = append(observed.Consumers, one.pod)
	}
	observed.Watched = r.lists.add(observed.hash(), at)
	return nil
}

// addConsumers adds the pods that use the volume if a replica is to leave its node, is being deleted before its
// upload, or may be displaced.
func (r *reconciler) addConsumers(ctx context.Context, observed *Observed, s *cacheView) error {
	leaves := observed.needsConsumers()
	for _, rep := range observed.Replicas {
		leaves = leaves || observed.mustLeaveNode(rep) != "" || isDeletedBeforeUpload(rep)
	}
	if !leaves {
		return nil
	}
	found, _, err := r.consumersOnce(ctx, observed, s)
	if err != nil {
		return err
	}
	observed.ConsumersByNode = map[string][]string{}
	for _, one := range found {
		observed.Consumers = append(observed.Consumers, one.pod)
		observed.ConsumersByNode[one.node] = append(observed.ConsumersByNode[one.node], one.pod)
	}
	return nil
}

// consumes reports whether a pod that is not a loader of the volume uses a claim of the volume, or has used one
// since the upload began.
func (s *Observed) consumes(pod *corev1.Pod) bool {
	since := s.UploadJob != nil && !lastSeen(pod).Before(s.UploadJob.CreationTimestamp.Time)
	if kubeobject.PodEnded(pod) && !since || belongs(pod, s.Owner, s.Config.ID) {
		return false
	}
	claims := s.claimsIn(pod.Namespace)
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && slices.Contains(claims, v.PersistentVolumeClaim.ClaimName)
	})
}

// lastSeen returns the last time in the status of a pod that has ended. Not all such pods record when each
// container ended.
func lastSeen(pod *corev1.Pod) time.Time {
	out := pod.CreationTimestamp.Time
	at := func(t metav1.Time) {
		if t.After(out) {
			out = t.Time
		}
	}
	for _, c := range pod.Status.Conditions {
		at(c.LastTransitionTime)
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			at(c.State.Terminated.FinishedAt)
		}
	}
	return out
}

// askLoaders asks the running loaders of a volume for their progress, asksAtOnce at a time. A loader that does not
// answer has no report. In each pass, the loaders of a VolumeManager have askAllTimeout together, so that silent ones do
// not hold up other VolumeManagers. Each volume gets an equal share of what is left, so that they do not keep later
// volumes of their own from being asked either.
func (r *reconciler) askLoaders(ctx context.Context, observed *Observed, s *cacheView) {
	start := time.Now()
	asking, cancel := context.WithTimeout(ctx, (askAllTimeout-s.asking)/time.Duration(1+s.unasked))
	defer cancel()
	var busy errgroup.Group
	busy.SetLimit(asksAtOnce)
	for _, rep := range observed.running() {
		final := ""
		if isDeletedBeforeUpload(rep) {
			final = rep.Claim.Annotations[annotationFinal]
		}
		busy.Go(func() error {
			rep.Report = r.Progress(asking, rep.Pod.Status.PodIP, final)
			return nil
		})
	}
	_ = busy.Wait() // a loader that does not answer is no error
	s.asking += time.Since(start)
	r.addRefusals(ctx, observed)
}

// running returns the replicas with a loader that can be asked for its progress.
func (s *Observed) running() (out []*Replica) {
	for _, rep := range s.Replicas {
		if rep.Pod != nil && rep.Pod.Status.Phase == corev1.PodRunning && rep.Pod.Status.PodIP != "" {
			out = append(out, rep)
		}
	}
	return out
}

// errChanged means that the observed state has changed since the plan was computed.
var errChanged = errors.New("the VolumeManager has changed meanwhile")
