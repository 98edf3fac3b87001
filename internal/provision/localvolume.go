package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const (
	// localEvery is the interval between passes over all LocalVolumes if nothing wakes the loop;
	// minLocalPause is the minimum pause after each pass, because changes come in bursts.
	localEvery, minLocalPause = 15 * time.Second, time.Second
	// A request that the API server rejects or delays is retried after localEvery, doubled up to
	// localRetry.
	localRetry = 5*time.Minute - localEvery
	// localPrefix begins the names of LocalVolumes' PersistentVolumes, before the UID.
	localPrefix = "local-"
)

// LocalVolumeAPI is the part of the API that LocalVolumes need; in production a *kube.Client.
type LocalVolumeAPI interface {
	LocalVolume(ctx context.Context, namespace, name string) (*flexlvmv1.LocalVolume, error)
	SetLocalVolumeFinalizers(ctx context.Context, o *flexlvmv1.LocalVolume, finalizers []string) (*flexlvmv1.LocalVolume, error)
	UpdateLocalVolumeStatus(ctx context.Context, o *flexlvmv1.LocalVolume) error
}

// localVolumes creates and deletes the PersistentVolumes of LocalVolumes, in a simple loop whose only
// state is the backoff. It may be killed at any instant: a PersistentVolume's name follows from the UID
// of its LocalVolume, so it is created only once.
type localVolumes struct {
	provisioner *Provisioner
	client      kubernetes.Interface
	api         LocalVolumeAPI
	watch       cache.SharedIndexInformer
	reports     cache.Store // NodeStorages
	wake        chan struct{}
	retries     controlplane.Retries[localAttempt]
	now         func() time.Time
}

// A localAttempt is the input of an attempt, as far as the caches show it.
type localAttempt struct {
	generation    int64
	deleted       bool
	class, volume string // resourceVersions
}

func (l *localVolumes) attempt(o *flexlvmv1.LocalVolume) localAttempt {
	out := localAttempt{generation: o.Generation, deleted: o.DeletionTimestamp != nil}
	if class, err := l.provisioner.Listers.Classes.Get(o.Spec.StorageClassName); err == nil {
		out.class = class.ResourceVersion
	}
	if object, err := l.provisioner.Listers.Volumes.Get(localPrefix + string(o.UID)); err == nil {
		out.volume = object.ResourceVersion
	}
	return out
}

// newLocalVolumes returns the loop, which these informers wake.
func newLocalVolumes(config Config, p *Provisioner, w *watches) (*localVolumes, error) {
	l := &localVolumes{
		provisioner: p, client: controlplane.WithCreateTimeout(config.Client, createTimeout, nil), api: config.Storage, reports: w.storage.GetStore(), wake: make(chan struct{}, 1),
		retries: controlplane.NewRetries[localAttempt](localEvery, localRetry), now: time.Now,
		watch: cache.NewSharedIndexInformer(config.Storage.WatchLocalVolumes(), &flexlvmv1.LocalVolume{}, 0, cache.Indexers{}),
	}
	declared := func(v *corev1.PersistentVolume) {
		if v.Annotations[pv.AnnotationDeclared] != "" {
			l.kick()
		}
	}
	reported := func(s *flexlvmv1.NodeStorage) {
		if len(s.Status.DeclaredVolumes) > 0 {
			l.kick()
		}
	}
	_, err1 := l.watch.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { l.kick() },
		UpdateFunc: func(was, now any) {
			if changedBeyondStatus(was.(*flexlvmv1.LocalVolume), now.(*flexlvmv1.LocalVolume)) {
				l.kick()
			}
		},
		DeleteFunc: func(any) { l.kick() },
	})
	_, err2 := w.volumes.AddEventHandler(handlerFuncs(declared, declared))
	_, err3 := w.storage.AddEventHandler(handlerFuncs(reported, reported))
	return l, errors.Join(err1, err2, err3)
}

// changedBeyondStatus reports whether somebody else may have changed the object. The loop's own status
// writes do not wake it: a webhook with a different error each time would keep it busy.
func changedBeyondStatus(was, now *flexlvmv1.LocalVolume) bool {
	return was.UID != now.UID || was.Generation != now.Generation || !slices.Equal(was.Finalizers, now.Finalizers) ||
		was.DeletionTimestamp.IsZero() != now.DeletionTimestamp.IsZero()
}

func (l *localVolumes) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run makes passes until ctx ends.
func (l *localVolumes) run(ctx context.Context) {
	go l.watch.RunWithContext(ctx)
	for {
		if l.watch.HasSynced() {
			l.retries.Prune(l.now())
			for _, o := range l.watch.GetStore().List() {
				l.sync(ctx, o.(*flexlvmv1.LocalVolume).DeepCopy())
			}
		}
		pause, next := time.NewTimer(minLocalPause), time.NewTimer(localEvery)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		case <-l.wake:
		}
	}
}

// sync reconciles one LocalVolume and updates its status.
func (l *localVolumes) sync(ctx context.Context, o *flexlvmv1.LocalVolume) {
	log, key, this := klog.FromContext(ctx).WithValues("localvolume", klog.KObj(o)), string(o.UID), l.attempt(o)
	if l.retries.Wait(key, this, l.now()) {
		return
	}
	ready, err := l.reconcile(ctx, o)
	if err == nil && l.applyStatus(o, ready) {
		err = l.api.UpdateLocalVolumeStatus(ctx, o)
	}
	switch {
	case err == nil && !ready.retry || ctx.Err() != nil || apierrors.IsNotFound(err):
		l.retries.Forget(key)
	case apierrors.IsConflict(err):
		log.V(1).Info("A LocalVolume has changed meanwhile and is checked again")
	case err == nil:
		l.retries.Failed(key, this, l.now())
	default:
		log.Error(err, "A LocalVolume could not be processed; it is retried")
	}
}

// A readyCondition is the content of the condition Ready; an empty reason leaves the condition unchanged.
type readyCondition struct {
	volume          string // name of the PersistentVolume
	isTrue          bool
	reason, message string
	retry           bool // check again with backoff, without a change
}

// applyStatus applies the condition Ready to the status of o, and reports whether the status has changed.
func (l *localVolumes) applyStatus(o *flexlvmv1.LocalVolume, ready readyCondition) bool {
	if ready.reason == "" {
		return false
	}
	status := metav1.ConditionFalse
	if ready.isTrue {
		status = metav1.ConditionTrue
	}
	return setReady(&o.Status, ready.volume, metav1.Condition{
		Type: flexlvmv1.ConditionReady, Status: status, Reason: ready.reason, Message: ready.message, ObservedGeneration: o.Generation,
	})
}

// reconcile performs the next step, and returns the condition to report.
func (l *localVolumes) reconcile(ctx context.Context, o *flexlvmv1.LocalVolume) (readyCondition, error) {
	if o.DeletionTimestamp != nil {
		return l.finalize(ctx, o)
	}
	name := localPrefix + string(o.UID)
	object, err := l.provisioner.Listers.Volumes.Get(name)
	if apierrors.IsNotFound(err) {
		if hasReason(o, flexlvmv1.LocalVolumeGone) {
			return readyCondition{}, nil // the condition is final
		}
		if o.Status.PersistentVolumeName == "" {
			if ready := l.refusal(o); ready.reason != "" {
				return ready, nil
			}
		}
		// The cache may be stale.
		if object, err = l.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return l.create(ctx, o)
		}
	}
	if err != nil {
		return readyCondition{}, err
	}
	ready := l.state(o, object)
	if ready.isTrue && !slices.Contains(o.Finalizers, pv.FinalizerLocalVolume) {
		// Somebody has replaced the LocalVolume and dropped its finalizer, without which nothing
		// would delete the PersistentVolume.
		now, err := l.api.SetLocalVolumeFinalizers(ctx, o, kubeobject.WithFinalizer(o, pv.FinalizerLocalVolume))
		if err != nil {
			return readyCondition{}, err
		}
		now.DeepCopyInto(o)
	}
	if ready.reason != flexlvmv1.LocalVolumeMaking && ready.reason != flexlvmv1.LocalVolumeMade {
		return ready, nil
	}
	gone, err := l.nodeGone(ctx, o)
	if gone {
		ready = readyCondition{volume: object.Name, reason: flexlvmv1.LocalVolumeNodeGone, message: fmt.Sprintf("node %s is gone from the cluster, and the volume with it; if it will not come back with its disks, delete this LocalVolume, and make another on a node that is there", o.Spec.NodeName)}
	}
	return ready, err
}

// nodeGone reports whether the API has no such node. A cache without the node may be stale, but not once
// LocalVolumeNodeGone was reported.
func (l *localVolumes) nodeGone(ctx context.Context, o *flexlvmv1.LocalVolume) (bool, error) {
	if _, err := l.provisioner.Listers.Nodes.Get(o.Spec.NodeName); !apierrors.IsNotFound(err) {
		return false, err
	}
	if hasReason(o, flexlvmv1.LocalVolumeNodeGone) {
		return true, nil
	}
	_, err := l.client.CoreV1().Nodes().Get(ctx, o.Spec.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

// create creates the PersistentVolume. It does not create it again after a deletion.
func (l *localVolumes) create(ctx context.Context, o *flexlvmv1.LocalVolume) (readyCondition, error) {
	now, err := l.api.LocalVolume(ctx, o.Namespace, o.Name)
	switch {
	case err != nil:
		return readyCondition{}, err
	case now.UID != o.UID || now.DeletionTimestamp != nil:
		return readyCondition{}, nil
	case now.Status.PersistentVolumeName != "":
		return readyCondition{volume: now.Status.PersistentVolumeName, reason: flexlvmv1.LocalVolumeGone, message: fmt.Sprintf("PersistentVolume %s is gone, and its volume was given up; it is not created again: delete this LocalVolume, and make another if one is needed", now.Status.PersistentVolumeName)}, nil
	}
	object, ready := l.reserve(o)
	if ready.reason != "" {
		return ready, nil
	}
	if !slices.Contains(now.Finalizers, pv.FinalizerLocalVolume) {
		if now, err = l.api.SetLocalVolumeFinalizers(ctx, now, kubeobject.WithFinalizer(now, pv.FinalizerLocalVolume)); err != nil {
			return readyCondition{}, err
		}
	}
	made, err := l.client.CoreV1().PersistentVolumes().Create(ctx, object, metav1.CreateOptions{})
	if controlplane.Denied(err) {
		return readyCondition{retry: true, reason: flexlvmv1.LocalVolumeRefused, message: fmt.Sprintf("the API server refuses its PersistentVolume: %v; make another LocalVolume, or change what forbids it", err)}, nil
	}
	if err != nil {
		return readyCondition{}, fmt.Errorf("write PersistentVolume %q: %w", object.Name, err)
	}
	l.provisioner.Ledger.Written(made)
	klog.FromContext(ctx).Info("PersistentVolume made for a LocalVolume", "localvolume", klog.KObj(o), "persistentvolume", made.Name, "node", o.Spec.NodeName)
	now.DeepCopyInto(o)
	return l.state(o, made), nil
}

// state returns the condition that describes the PersistentVolume of a LocalVolume.
func (l *localVolumes) state(o *flexlvmv1.LocalVolume, object *corev1.PersistentVolume) readyCondition {
	ready := readyCondition{volume: object.Name}
	switch claim := o.Namespace + "/" + claimOf(o); {
	case object.Annotations[pv.AnnotationDeclared] != o.Namespace+"/"+o.Name:
		ready.reason, ready.message = flexlvmv1.LocalVolumeRefused, fmt.Sprintf("PersistentVolume %s exists, and was not created for this LocalVolume; it is left as it is", object.Name)
	case object.Status.Phase == corev1.VolumeBound:
		ready.isTrue, ready.reason, ready.message = true, flexlvmv1.LocalVolumeBound, fmt.Sprintf("claim %s is bound to it", claim)
	case object.DeletionTimestamp != nil || object.Status.Phase == corev1.VolumeReleased || object.Status.Phase == corev1.VolumeFailed:
		ready.reason, ready.message = flexlvmv1.LocalVolumeReleased, fmt.Sprintf("PersistentVolume %s was released or deleted, and its node gives the volume up as its reclaim policy says; delete this LocalVolume", object.Name)
	case claimed(o):
		ready.reason, ready.message = flexlvmv1.LocalVolumeReleased, fmt.Sprintf("a claim was bound to PersistentVolume %s, which may hold its data and is no longer this LocalVolume's; delete this LocalVolume, which leaves it as it is", object.Name)
	default:
		made, why := l.isCreated(o.Spec.NodeName, object.Name)
		if made {
			ready.isTrue, ready.reason, ready.message = true, flexlvmv1.LocalVolumeMade, fmt.Sprintf("the volume is created, and kept for claim %s", claim)
			break
		}
		ready.reason, ready.message = flexlvmv1.LocalVolumeMaking, fmt.Sprintf("node %s has not created it yet: %s", o.Spec.NodeName, why)
		if why == "" { // otherwise its volume group may be gone, with the room
			ready.message = fmt.Sprintf("its room is reserved, and node %s has not created it yet", o.Spec.NodeName)
		}
	}
	return ready
}

// claimed reports whether a claim was ever seen bound to the volume: from then on the volume may hold
// data, whatever a user does to its PersistentVolume.
func claimed(o *flexlvmv1.LocalVolume) bool {
	return hasReason(o, flexlvmv1.LocalVolumeBound, flexlvmv1.LocalVolumeInUse, flexlvmv1.LocalVolumeReleased)
}

// hasReason reports whether a LocalVolume's condition has one of these reasons.
func hasReason(o *flexlvmv1.LocalVolume, reasons ...string) bool {
	ready := meta.FindStatusCondition(o.Status.Conditions, flexlvmv1.ConditionReady)
	return ready != nil && slices.Contains(reasons, ready.Reason)
}

// isCreated reports whether a node has reported that it has created a volume, or returns why not.
func (l *localVolumes) isCreated(node, volume string) (bool, string) {
	report, there, err := l.reports.GetByKey(node)
	if err != nil || !there {
		return false, "the node does not report; check the pod of DaemonSet flexlvm-gc there"
	}
	listed := report.(*flexlvmv1.NodeStorage).Status.DeclaredVolumes
	for _, v := range listed {
		if v.Name == volume {
			return v.State == flexlvmv1.DeclaredMade, v.Message
		}
	}
	if len(listed) >= flexlvmv1.MaxDeclaredVolumes {
		return false, fmt.Sprintf("it may have: more than %d volumes wait for their claims there, and the node lists no more; this is known once fewer do", flexlvmv1.MaxDeclaredVolumes)
	}
	return false, ""
}

// finalize deletes the PersistentVolume of a deleted LocalVolume if no claim is bound to it, on the
// condition that the object has not changed since it was read. Afterwards only the PersistentVolume
// represents the volume, until its node has released it, so that the deletion of a namespace does not
// wait for a node.
func (l *localVolumes) finalize(ctx context.Context, o *flexlvmv1.LocalVolume) (readyCondition, error) {
	if !slices.Contains(o.Finalizers, pv.FinalizerLocalVolume) {
		return readyCondition{}, nil
	}
	name := localPrefix + string(o.UID)
	object, err := l.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return readyCondition{}, l.removeFinalizer(ctx, o)
	case err != nil:
		return readyCondition{}, err
	case object.Annotations[pv.AnnotationDeclared] != o.Namespace+"/"+o.Name:
		return readyCondition{}, l.removeFinalizer(ctx, o) // the PersistentVolume is somebody else's
	}
	switch ref := object.Spec.ClaimRef; {
	case object.Status.Phase == corev1.VolumeReleased || object.Status.Phase == corev1.VolumeFailed:
		// A volume that was bound to a claim follows its reclaim policy.
		return readyCondition{}, l.removeFinalizer(ctx, o)
	case object.Status.Phase == corev1.VolumeBound || ref != nil && ref.UID != "":
		return readyCondition{retry: true, volume: name, reason: flexlvmv1.LocalVolumeInUse, message: fmt.Sprintf("claim %s/%s is bound to the volume; delete the claim first if nobody needs it", o.Namespace, claimOf(o))}, nil
	case claimed(o) || ref == nil || ref.Namespace != o.Namespace || ref.Name != claimOf(o):
		return readyCondition{}, l.removeFinalizer(ctx, o) // it may hold a claim's data, or a user keeps it for another claim
	}
	if err := l.withdraw(ctx, object); err != nil {
		return readyCondition{}, err
	}
	return readyCondition{}, l.removeFinalizer(ctx, o)
}

// withdraw deletes a PersistentVolume, if the object has not changed since it was read.
func (l *localVolumes) withdraw(ctx context.Context, object *corev1.PersistentVolume) error {
	if object.DeletionTimestamp != nil {
		return nil
	}
	only := metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion}
	err := l.client.CoreV1().PersistentVolumes().Delete(ctx, object.Name, metav1.DeleteOptions{Preconditions: &only})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete PersistentVolume %q: %w", object.Name, err)
	}
	return nil
}

func (l *localVolumes) removeFinalizer(ctx context.Context, o *flexlvmv1.LocalVolume) error {
	_, err := l.api.SetLocalVolumeFinalizers(ctx, o, kubeobject.WithoutFinalizer(o, pv.FinalizerLocalVolume))
	return err
}
