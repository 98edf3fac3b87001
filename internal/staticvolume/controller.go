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
	// reconcileEvery is the interval between reconcile passes without a change. settle is how long to wait for more
	// changes after one.
	reconcileEvery, settle = time.Minute, 200 * time.Millisecond
	// callTimeout bounds each request.
	callTimeout = 30 * time.Second
	// warnEvery is how often the event of a lasting state is repeated.
	warnEvery = time.Hour
	// usedOfferTimeout is how long a node may keep reporting an offer that was already used.
	usedOfferTimeout = 2 * time.Minute
	// minRetry and maxRetry are the bounds of the backoff after a PersistentVolume was not created. The next
	// round retries, so within five minutes after a person has fixed the cause.
	minRetry, maxRetry = 10 * time.Second, 5*time.Minute - reconcileEvery
)

// Config configures a Controller.
type Config struct {
	Client  kubernetes.Interface
	API     *kube.Client // for its watches
	Events  record.EventRecorder
	Classes storagelisters.StorageClassLister
	// Nodes is the cache of nodes.
	Nodes corelisters.NodeLister
	// NodeStorages is the watch of all NodeStorages.
	NodeStorages cache.SharedIndexInformer
	Now          func() time.Time
}

// A Controller creates and deletes the PersistentVolumes of discovered file systems and disks.
type Controller struct {
	Config
	discoveries   cache.SharedIndexInformer
	volumes       cache.SharedIndexInformer
	wake          chan struct{}
	highestOffers map[string]int64 // by offerKey: the highest offer that a PersistentVolume of that name and disk was created from
	// usedOffers and previousUsedOffers record, by the keys of highestOffers, since when a node has reported an offer
	// that was already used: in this round, and in the previous one.
	usedOffers, previousUsedOffers map[string]time.Time
	warned                         map[warning]time.Time     // when the last event was sent, if in the last hour
	locals                         []corev1.PersistentVolume // all local and hostPath PersistentVolumes, flexlvm's or not, in this round; nil: not listed yet
	localsErr                      error                     // why they cannot be listed in this round
	retries                        controlplane.Retries[attempt]
}

// An attempt holds the inputs of a PersistentVolume's creation. If they change, the backoff starts again.
type attempt struct {
	discoveryVersion string               // version of the VolumeDiscovery
	found            flexlvmv1.Discovered // without its size, which is in size
	size             int64
}

func attemptOf(discovery *flexlvmv1.VolumeDiscovery, found *flexlvmv1.Discovered) attempt {
	out := attempt{discoveryVersion: discovery.Version(), found: *found, size: found.Size.Value()}
	out.found.Size = resource.Quantity{} // equal Quantities may differ under ==
	return out
}

// New returns a Controller. It does nothing before Run.
func New(config Config) (*Controller, error) {
	c := &Controller{
		Config:      config,
		discoveries: cache.NewSharedIndexInformer(config.API.WatchVolumeDiscoveries(), &flexlvmv1.VolumeDiscovery{}, 0, cache.Indexers{}),
		volumes:     cache.NewSharedIndexInformer(config.API.WatchDiscovered(""), &corev1.PersistentVolume{}, 0, cache.Indexers{}),
		wake:        make(chan struct{}, 1), highestOffers: map[string]int64{}, warned: map[warning]time.Time{},
		retries: controlplane.NewRetries[attempt](minRetry, maxRetry),
	}
	always := func(any, any) bool { return true }
	_, err1 := c.discoveries.AddEventHandler(c.wakeOn(always))
	_, err2 := c.volumes.AddEventHandler(c.wakeOn(always))
	_, err3 := config.NodeStorages.AddEventHandler(c.wakeOn(discoveredChanged))
	return c, errors.Join(err1, err2, err3)
}

// wakeOn returns a handler that wakes Run on additions, deletions and the updates for which matters returns
// true.
func (c *Controller) wakeOn(matters func(was, now any) bool) cache.ResourceEventHandler {
	kick := func(any) {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: kick, DeleteFunc: kick, UpdateFunc: func(was, now any) {
		if matters(was, now) {
			kick(now)
		}
	}}
}

// discoveredChanged reports whether the discovered entries in a NodeStorage, or the VolumeDiscovery they are based
// on, have changed.
func discoveredChanged(was, now any) bool {
	a, b := &was.(*flexlvmv1.NodeStorage).Status, &now.(*flexlvmv1.NodeStorage).Status
	return a.DiscoveredFrom != b.DiscoveredFrom || !equality.Semantic.DeepEqual(a.Discovered, b.Discovered)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	go c.discoveries.RunWithContext(ctx)
	go c.volumes.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), c.discoveries.HasSynced, c.volumes.HasSynced, c.NodeStorages.HasSynced) {
		return
	}
	for next := time.Duration(0); wait(ctx, next, c.wake); next = reconcileEvery {
		if !wait(ctx, settle, nil) {
			return
		}
		if err := c.reconcile(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Reconciling discovered volumes failed; it is retried")
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

// reconcile is one reconcile pass over all discovered entries. An entry's failure does not stop the others.
func (c *Controller) reconcile(ctx context.Context) error {
	discovery := c.discovery()
	defer func() { c.locals, c.localsErr = nil, nil }()
	c.retries.Prune(c.Now())
	c.pruneWarned()
	c.previousUsedOffers, c.usedOffers = c.usedOffers, map[string]time.Time{}
	var failed []error
	for _, o := range c.NodeStorages.GetStore().List() {
		report := o.(*flexlvmv1.NodeStorage)
		if !c.isCurrent(discovery, report) {
			continue
		}
		for i := range report.Status.Discovered {
			found := &report.Status.Discovered[i]
			var err error
			switch found.State {
			case flexlvmv1.DiscoveredReady:
				err = c.createOffered(ctx, discovery, report.Name, found)
			case flexlvmv1.DiscoveredCleaned:
				err = c.deleteCleaned(ctx, report.Name, found)
			case flexlvmv1.DiscoveredRefused:
				err = c.deleteWithdrawn(ctx, report.Name, found)
			}
			if err != nil && !errors.Is(err, c.localsErr) { // localsErr would be repeated for each entry
				failed = append(failed, fmt.Errorf("%s of node %s: %w", found.Path, report.Name, err))
			}
		}
	}
	return errors.Join(append(failed, c.localsErr)...)
}

// isCurrent reports whether a node's report is up to date: the node is not silent, and the report is based on the
// current VolumeDiscovery.
func (c *Controller) isCurrent(discovery *flexlvmv1.VolumeDiscovery, report *flexlvmv1.NodeStorage) bool {
	age := c.Now().Sub(report.Status.ObservedTime.Time).Abs() // a report from the future would count long after its daemon is gone
	if discovery == nil {
		return len(report.Status.Discovered) > 0 && age <= flexlvmv1.MaxReportAge
	}
	if report.Status.DiscoveredFrom != discovery.Version() || len(report.Status.Discovered) == 0 {
		return false // the node is about to observe again and report
	}
	if age <= flexlvmv1.MaxReportAge {
		return true
	}
	// Not warn, because a node whose clock is ahead reports another time, and so another message, each time.
	c.warnKeyed(discovery, warning{"NodeSilent", report.Name}, fmt.Sprintf("node %s last reported at %s, by its clock: no PersistentVolume is created for what it found then, and none that it cleaned is deleted; see the pod of DaemonSet flexlvm-gc and at the clock there", report.Name, report.Status.ObservedTime.UTC().Format(time.RFC3339)))
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

// cachedVolume returns the cached PersistentVolume of that name, or nil, and records the offer it was created from.
func (c *Controller) cachedVolume(name string) *corev1.PersistentVolume {
	o, there, err := c.volumes.GetStore().GetByKey(name)
	if err != nil || !there {
		return nil
	}
	v := o.(*corev1.PersistentVolume)
	if offer, err := strconv.ParseInt(v.Annotations[flexlvmv1.AnnotationOffer], 10, 64); err == nil {
		key := offerKey(name, v.Annotations[flexlvmv1.AnnotationDisk])
		c.highestOffers[key] = max(c.highestOffers[key], offer)
	}
	return v
}

// offerKey returns the key of highestOffers: offers are counted per disk.
func offerKey(name, disk string) string { return name + "\x00" + disk }

// createOffered creates the PersistentVolume of a ready entry, at most once per offer of the node: the node's report
// may be older than the deletion of the previous PersistentVolume.
func (c *Controller) createOffered(ctx context.Context, discovery *flexlvmv1.VolumeDiscovery, node string, found *flexlvmv1.Discovered) error {
	name := Name(node, found.Path)
	if discovery == nil || c.cachedVolume(name) != nil || c.isUsedOffer(discovery, node, found) {
		return nil
	}
	class := classOf(discovery, found.StorageClassName, found.Path)
	if class == nil {
		return nil
	}
	storage, err := c.Classes.Get(class.StorageClassName)
	if err == nil {
		err = checkClass(storage)
	}
	if err != nil {
		c.warn(discovery, "StorageClassRefused", err.Error())
		return nil
	}
	cachedNode, err := c.Nodes.Get(node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !c.selects(discovery, class, cachedNode) {
		return err
	}
	this := attemptOf(discovery, found)
	if c.retries.Wait(name, this, c.Now()) {
		return nil
	}
	created, err := c.create(ctx, source{discovery, class, storage, found}, cachedNode)
	if created == nil {
		c.retries.Failed(name, this, c.Now())
		return c.reportRefusal(discovery, cachedNode, found, err)
	}
	c.retries.Forget(name)
	c.highestOffers[offerKey(name, found.Disk)] = found.Offer
	c.locals = append(c.locals, stripLocal(created))
	klog.FromContext(ctx).Info("Created the PersistentVolume of a discovered volume", "persistentvolume", name, "node", node, "path", found.Path, "disk", found.Disk)
	c.Events.Event(created, corev1.EventTypeNormal, "Discovered", fmt.Sprintf("created for %s (%s) on node %s", found.Path, found.Disk, node))
	return nil
}

// A source is what a PersistentVolume is created from.
type source struct {
	discovery *flexlvmv1.VolumeDiscovery
	class     *flexlvmv1.DiscoveryClass
	storage   *storagev1.StorageClass
	found     *flexlvmv1.Discovered
}

// create creates a PersistentVolume. It returns nil if there is to be none. It gets the node from the API server
// only if the cached node does not already rule the PersistentVolume out.
func (c *Controller) create(ctx context.Context, from source, node *corev1.Node) (*corev1.PersistentVolume, error) {
	created, err := c.build(ctx, from, node)
	if created == nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // build may have listed many pages, each with its own timeout
	defer cancel()
	if node, err = c.Client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if created, err = c.build(ctx, from, node); created == nil {
		return nil, err
	}
	created, err = c.Client.CoreV1().PersistentVolumes().Create(ctx, created, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, nil // the watch is late, or another program created it; the next round reports nothing in either case
	case err != nil:
		return nil, err
	}
	return created, nil
}

// build returns the PersistentVolume to create, or nil if there is to be none.
func (c *Controller) build(ctx context.Context, from source, node *corev1.Node) (*corev1.PersistentVolume, error) {
	if !c.selects(from.discovery, from.class, node) {
		return nil, nil
	}
	out, err := build(node, from.class, from.storage, from.found)
	if err != nil {
		return nil, err
	}
	if err := c.listLocals(ctx); err != nil {
		return nil, err
	}
	if reason, why := c.takenBy(out); reason != "" {
		c.warn(from.discovery, reason, fmt.Sprintf("%s of node %s gets no PersistentVolume: %s", from.found.Path, node.Name, why))
		return nil, nil
	}
	return out, nil
}

// isUsedOffer reports whether a PersistentVolume was already created from this offer or a later one. If the node
// keeps reporting such an offer for longer than usedOfferTimeout, isUsedOffer sends an event: no PersistentVolume is
// created until a person acts.
func (c *Controller) isUsedOffer(discovery *flexlvmv1.VolumeDiscovery, node string, found *flexlvmv1.Discovered) bool {
	key := offerKey(Name(node, found.Path), found.Disk)
	if c.highestOffers[key] < found.Offer {
		return false
	}
	now := c.Now()
	since, there := c.previousUsedOffers[key]
	if !there {
		since = now
	}
	c.usedOffers[key] = since
	if now.Sub(since) > usedOfferTimeout {
		c.warn(discovery, "OfferTaken", fmt.Sprintf("%s of node %s gets no PersistentVolume: one was created for this offer of %s, or for a later one, and is gone, and the node has not offered it again. Check that its pod of DaemonSet flexlvm-gc runs; if it does, it has not seen that PersistentVolume, or its records were lost: check that nobody needs the data on the disk, empty it, and restart the provisioner (kubectl -n flexlvm-system rollout restart deployment/flexlvm-provisioner)", found.Path, node, found.Disk))
	}
	return true
}

// selects reports whether a class selects a node. If its nodeSelector is invalid, the node reports that as
// well.
func (c *Controller) selects(discovery *flexlvmv1.VolumeDiscovery, class *flexlvmv1.DiscoveryClass, node *corev1.Node) bool {
	selects, err := class.Selects(node.Labels)
	if err != nil {
		c.warn(discovery, "ClassRefused", fmt.Sprintf("class %s: nodeSelector: %v", class.StorageClassName, err))
	}
	return err == nil && selects
}

// deleteCleaned deletes a PersistentVolume whose disk its node has cleaned, if it is still the same object and
// still released by the claim after which the disk was cleaned: a person may have bound it to another claim
// since.
func (c *Controller) deleteCleaned(ctx context.Context, node string, found *flexlvmv1.Discovered) error {
	v := c.cachedVolume(Name(node, found.Path))
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
	v := c.cachedVolume(Name(node, found.Path))
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
		klog.FromContext(ctx).Info("Deleted the PersistentVolume of a discovered volume", "persistentvolume", v.Name, "because", because, "node", v.Labels[flexlvmv1.LabelDiscoveredOn], "path", v.Spec.Local.Path)
	}
	return err
}
