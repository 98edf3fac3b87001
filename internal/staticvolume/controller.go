package staticvolume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kube"
)

const (
	// lookEvery is the interval between reconcile passes without a change. settle is how long to wait for more
	// changes after one.
	lookEvery, settle = time.Minute, 200 * time.Millisecond
	// callTimeout bounds each request.
	callTimeout = 30 * time.Second
	// tellAgain is how often the event of a lasting state is repeated.
	tellAgain = time.Hour
	// silent is the maximum age of a report. The node daemon renews it every five minutes.
	silent = 15 * time.Minute
	// skippedLong is how long a node may keep reporting an offer that was already used.
	skippedLong = 2 * time.Minute
	// retryFirst and retryMost are the bounds of the backoff after a PersistentVolume was not created. The next
	// round retries, so within five minutes after a person has fixed the cause.
	retryFirst, retryMost = 10 * time.Second, 5*time.Minute - lookEvery
)

// Config configures a Controller.
type Config struct {
	Client  kubernetes.Interface
	API     *kube.Client // for its watches
	Events  record.EventRecorder
	Classes storagelisters.StorageClassLister
	// Known is the cache of nodes.
	Known corelisters.NodeLister
	// Nodes is the watch of all NodeStorages.
	Nodes cache.SharedIndexInformer
	Now   func() time.Time
}

// A Controller creates and deletes the PersistentVolumes of discovered file systems and disks.
type Controller struct {
	Config
	discoveries cache.SharedIndexInformer
	volumes     cache.SharedIndexInformer
	kicks       chan struct{}
	used        map[string]int64 // by usedBy: the highest offer that a PersistentVolume of that name and disk was created from
	// skipped and wasSkipped record, by the keys of used, since when a node has reported an offer that was
	// already used: in this round, and in the previous one.
	skipped, wasSkipped map[string]time.Time
	told                map[warning]time.Time     // when the last event was sent, if in the last hour
	locals              []corev1.PersistentVolume // all local PersistentVolumes, flexlvm's or not, in this round; nil: not listed yet
	retries             controlplane.Retries[attempt]
}

// An attempt holds the inputs of a PersistentVolume's creation. If they change, the backoff starts again.
type attempt struct {
	declared string               // version of the VolumeDiscovery
	found    flexlvmv1.Discovered // without its size, which is in size
	size     int64
}

func attemptOf(declared *flexlvmv1.VolumeDiscovery, found *flexlvmv1.Discovered) attempt {
	out := attempt{declared: declared.Version(), found: *found, size: found.Size.Value()}
	out.found.Size = resource.Quantity{} // equal Quantities may differ under ==
	return out
}

// New returns a Controller. It does nothing before Run.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:      config,
		discoveries: cache.NewSharedIndexInformer(config.API.WatchVolumeDiscoveries(), &flexlvmv1.VolumeDiscovery{}, 0, cache.Indexers{}),
		volumes:     cache.NewSharedIndexInformer(config.API.WatchDiscovered(""), &corev1.PersistentVolume{}, 0, cache.Indexers{}),
		kicks:       make(chan struct{}, 1), used: map[string]int64{}, told: map[warning]time.Time{},
		retries: controlplane.NewRetries[attempt](retryFirst, retryMost),
	}
	always := func(any, any) bool { return true }
	_, err1 := c.discoveries.AddEventHandler(c.kicked(always))
	_, err2 := c.volumes.AddEventHandler(c.kicked(always))
	_, err3 := config.Nodes.AddEventHandler(c.kicked(discoversOther))
	return c, errors.Join(err1, err2, err3)
}

// kicked returns a handler that wakes Run on additions, deletions and the updates for which matters returns
// true.
func (c *Controller) kicked(matters func(was, now any) bool) cache.ResourceEventHandler {
	kick := func(any) {
		select {
		case c.kicks <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: kick, DeleteFunc: kick, UpdateFunc: func(was, now any) {
		if matters(was, now) {
			kick(now)
		}
	}}
}

// discoversOther reports whether the discovered entries in a NodeStorage, or the VolumeDiscovery they are based
// on, have changed.
func discoversOther(was, now any) bool {
	a, b := &was.(*flexlvmv1.NodeStorage).Status, &now.(*flexlvmv1.NodeStorage).Status
	return a.DiscoveredFrom != b.DiscoveredFrom || !equality.Semantic.DeepEqual(a.Discovered, b.Discovered)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	go c.discoveries.RunWithContext(ctx)
	go c.volumes.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), c.discoveries.HasSynced, c.volumes.HasSynced, c.Nodes.HasSynced) {
		return
	}
	for next := time.Duration(0); wait(ctx, next, c.kicks); next = lookEvery {
		if !wait(ctx, settle, nil) {
			return
		}
		if err := c.round(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "What nodes have discovered is looked at again")
		}
	}
}

// wait waits for d or for a kick. It returns false if ctx has ended.
func wait(ctx context.Context, d time.Duration, kicks <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-kicks:
	}
	return ctx.Err() == nil
}

// round is one reconcile pass over all discovered entries. An entry's failure does not stop the others.
func (c *Controller) round(ctx context.Context) error {
	declared := c.discovery()
	defer func() { c.locals = nil }()
	c.retries.Prune(c.Now())
	c.pruneTold()
	c.wasSkipped, c.skipped = c.skipped, map[string]time.Time{}
	var failed []error
	for _, o := range c.Nodes.GetStore().List() {
		report := o.(*flexlvmv1.NodeStorage)
		if !c.counts(declared, report) {
			continue
		}
		for i := range report.Status.Discovered {
			found := &report.Status.Discovered[i]
			var err error
			switch found.State {
			case flexlvmv1.DiscoveredReady:
				err = c.offer(ctx, declared, report.Name, found)
			case flexlvmv1.DiscoveredCleaned:
				err = c.deleteCleaned(ctx, report.Name, found)
			case flexlvmv1.DiscoveredRefused:
				err = c.deleteWithdrawn(ctx, report.Name, found)
			}
			if err != nil {
				failed = append(failed, fmt.Errorf("%s of node %s: %w", found.Path, report.Name, err))
			}
		}
	}
	return errors.Join(failed...)
}

// counts reports whether a node's report is up to date: the node is not silent, and the report is based on the
// current VolumeDiscovery.
func (c *Controller) counts(declared *flexlvmv1.VolumeDiscovery, report *flexlvmv1.NodeStorage) bool {
	age := c.Now().Sub(report.Status.ObservedTime.Time).Abs() // a report from the future would count long after its daemon is gone
	if declared == nil {
		return len(report.Status.Discovered) > 0 && age <= silent
	}
	if report.Status.DiscoveredFrom != declared.Version() || len(report.Status.Discovered) == 0 {
		return false // the node is about to observe again and report
	}
	if age <= silent {
		return true
	}
	// tellOf, because a node whose clock is ahead reports another time, and so another message, each time.
	c.tellOf(declared, warning{"NodeSilent", report.Name}, fmt.Sprintf("node %s last reported at %s, by its clock: no PersistentVolume is made of what it found then, and none that it cleaned is deleted; look at the pod of DaemonSet flexlvm-gc and at the clock there", report.Name, report.Status.ObservedTime.UTC().Format(time.RFC3339)))
	return false
}

// discovery returns the VolumeDiscovery, or nil if there is none.
func (c *Controller) discovery() *flexlvmv1.VolumeDiscovery {
	o, there, err := c.discoveries.GetStore().GetByKey(flexlvmv1.VolumeDiscoveryName)
	if err != nil || !there {
		return nil
	}
	if d := o.(*flexlvmv1.VolumeDiscovery); d.DeletionTimestamp == nil {
		return d
	}
	return nil
}

// known returns the cached PersistentVolume of that name, or nil, and records the offer it was created from.
func (c *Controller) known(name string) *corev1.PersistentVolume {
	o, there, err := c.volumes.GetStore().GetByKey(name)
	if err != nil || !there {
		return nil
	}
	v := o.(*corev1.PersistentVolume)
	if offer, err := strconv.ParseInt(v.Annotations[flexlvmv1.AnnotationOffer], 10, 64); err == nil {
		key := usedBy(name, v.Annotations[flexlvmv1.AnnotationDisk])
		c.used[key] = max(c.used[key], offer)
	}
	return v
}

// usedBy returns the key of used: offers are counted per disk.
func usedBy(name, disk string) string { return name + "\x00" + disk }

// offer creates the PersistentVolume of a ready entry, at most once per offer of the node: the node's report
// may be older than the deletion of the previous PersistentVolume.
func (c *Controller) offer(ctx context.Context, declared *flexlvmv1.VolumeDiscovery, node string, found *flexlvmv1.Discovered) error {
	name := Name(node, found.Path)
	if declared == nil || c.known(name) != nil || c.skips(declared, node, found) {
		return nil
	}
	class := classOf(declared, found.StorageClassName, found.Path)
	if class == nil {
		return nil
	}
	storage, err := c.Classes.Get(class.StorageClassName)
	if err == nil {
		err = checkClass(storage)
	}
	if err != nil {
		c.tell(declared, "StorageClassRefused", err.Error())
		return nil
	}
	known, err := c.Known.Get(node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !c.selects(declared, class, known) {
		return err
	}
	this := attemptOf(declared, found)
	if c.retries.Wait(name, this, c.Now()) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	made, err := c.make(ctx, declared, class, storage, known, found)
	if made == nil {
		c.retries.Failed(name, this, c.Now())
		return c.refused(declared, known, found, err)
	}
	c.retries.Forget(name)
	c.used[usedBy(name, found.Disk)] = found.Offer
	c.locals = append(c.locals, leanLocal(made))
	klog.FromContext(ctx).Info("A PersistentVolume is made of what a node has discovered", "persistentvolume", name, "node", node, "path", found.Path, "disk", found.Disk)
	c.Events.Event(made, corev1.EventTypeNormal, "Discovered", fmt.Sprintf("made of %s (%s) on node %s", found.Path, found.Disk, node))
	return nil
}

// make creates a PersistentVolume. It returns nil if there is to be none. It gets the node from the API server
// only if the cached node does not already rule the PersistentVolume out.
func (c *Controller) make(ctx context.Context, declared *flexlvmv1.VolumeDiscovery, class *flexlvmv1.DiscoveryClass, storage *storagev1.StorageClass, node *corev1.Node, found *flexlvmv1.Discovered) (*corev1.PersistentVolume, error) {
	made, err := c.build(ctx, declared, class, storage, node, found)
	if made == nil {
		return nil, err
	}
	if node, err = c.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if made, err = c.build(ctx, declared, class, storage, node, found); made == nil {
		return nil, err
	}
	made, err = c.Client.CoreV1().PersistentVolumes().Create(ctx, made, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, nil // the watch is late, or another program created it; the next round reports nothing in either case
	case err != nil:
		return nil, err
	}
	return made, nil
}

// build returns the PersistentVolume to create, or nil if there is to be none.
func (c *Controller) build(ctx context.Context, declared *flexlvmv1.VolumeDiscovery, class *flexlvmv1.DiscoveryClass, storage *storagev1.StorageClass, node *corev1.Node, found *flexlvmv1.Discovered) (*corev1.PersistentVolume, error) {
	if !c.selects(declared, class, node) {
		return nil, nil
	}
	out, err := build(node, class, storage, found)
	if err != nil {
		return nil, err
	}
	if err := c.listLocals(ctx); err != nil {
		return nil, err
	}
	if reason, why := c.takenBy(out); reason != "" {
		c.tell(declared, reason, fmt.Sprintf("%s of node %s gets no PersistentVolume: %s", found.Path, node.Name, why))
		return nil, nil
	}
	return out, nil
}

// skips reports whether a PersistentVolume was already created from this offer or a later one. If the node
// keeps reporting the offer, skips sends an event: no PersistentVolume is created until a person acts.
func (c *Controller) skips(declared *flexlvmv1.VolumeDiscovery, node string, found *flexlvmv1.Discovered) bool {
	key := usedBy(Name(node, found.Path), found.Disk)
	if c.used[key] < found.Offer {
		return false
	}
	now := c.Now()
	since, there := c.wasSkipped[key]
	if !there {
		since = now
	}
	c.skipped[key] = since
	if now.Sub(since) > skippedLong {
		c.tell(declared, "OfferTaken", fmt.Sprintf("%s of node %s gets no PersistentVolume: one was made of this offer of %s, or of a later one, and is gone, and the node has made no new offer. See that its pod of DaemonSet flexlvm-gc runs; if it does, it has not seen that PersistentVolume, or what it had noted was lost: see that nobody wants what the disk holds, empty it, and restart the provisioner (kubectl -n flexlvm-system rollout restart deployment/flexlvm-provisioner)", found.Path, node, found.Disk))
	}
	return true
}

// selects reports whether a class selects a node. If its nodeSelector is invalid, the node reports that as
// well.
func (c *Controller) selects(declared *flexlvmv1.VolumeDiscovery, class *flexlvmv1.DiscoveryClass, node *corev1.Node) bool {
	selects, err := class.Selects(node.Labels)
	if err != nil {
		c.tell(declared, "ClassRefused", fmt.Sprintf("class %s: nodeSelector: %v", class.StorageClassName, err))
	}
	return err == nil && selects
}

// deleteCleaned deletes a PersistentVolume whose disk its node has cleaned, if it is still the same object and
// still released by the claim after which the disk was cleaned: a person may have bound it to another claim
// since.
func (c *Controller) deleteCleaned(ctx context.Context, node string, found *flexlvmv1.Discovered) error {
	v := c.known(Name(node, found.Path))
	if v == nil || string(v.UID) != found.PersistentVolumeUID || v.DeletionTimestamp != nil ||
		v.Spec.ClaimRef == nil || string(v.Spec.ClaimRef.UID) != found.ClaimUID || found.ClaimUID == "" ||
		v.Status.Phase != corev1.VolumeReleased || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	return c.delete(ctx, v, "its node has cleaned it")
}

// deleteWithdrawn deletes a PersistentVolume that its node has withdrawn because kubelet would format data on
// the disk. It does so only if it is still the same object and has no claimRef: a binder writes the claimRef
// first.
func (c *Controller) deleteWithdrawn(ctx context.Context, node string, found *flexlvmv1.Discovered) error {
	v := c.known(Name(node, found.Path))
	if !found.Withdrawn || v == nil || string(v.UID) != found.PersistentVolumeUID || v.DeletionTimestamp != nil ||
		v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable {
		return nil
	}
	return c.delete(ctx, v, "its node has withdrawn it: "+found.Message)
}

// delete deletes a PersistentVolume in the version that was observed. If it has changed or is gone, the watch
// reports that.
func (c *Controller) delete(ctx context.Context, v *corev1.PersistentVolume, because string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &v.UID, ResourceVersion: &v.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		klog.FromContext(ctx).Info("A PersistentVolume of what a node discovered is deleted", "persistentvolume", v.Name, "because", because, "node", v.Labels[flexlvmv1.LabelDiscoveredOn], "path", v.Spec.Local.Path)
	}
	return err
}
