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
	// lookEvery is how often to look at all again without a change, and settle how long to
	// wait for more changes after one.
	lookEvery, settle = time.Minute, 200 * time.Millisecond
	// callTimeout bounds each request.
	callTimeout = 30 * time.Second
	// tellAgain is how often there is an event for a state that lasts.
	tellAgain = time.Hour
	// silent is how old a report may be. The node daemon confirms it every five minutes.
	silent = 15 * time.Minute
	// skippedLong is how long a node may go on reporting an offer that was taken.
	skippedLong = 2 * time.Minute
	// What got no PersistentVolume is tried again after retryFirst, doubled up to retryMost, by the next round: within
	// five minutes of what a person has put right.
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

// A Controller makes and deletes PersistentVolumes.
type Controller struct {
	Config
	discoveries cache.SharedIndexInformer
	volumes     cache.SharedIndexInformer
	kicks       chan struct{}
	used        map[string]int64 // the offer of a disk that the last PersistentVolume of a name took
	// Since when an offer is not taken, as used has it or a later one, by the key of used: in this
	// round, and in the one before.
	skipped, wasSkipped map[string]time.Time
	told                map[warning]time.Time     // when there was last an event, in the last hour
	locals              []corev1.PersistentVolume // all local ones, flexlvm's or not, in this round; nil: not read yet
	retries             controlplane.Retries[attempt]
}

// An attempt is what a PersistentVolume was to be made of.
type attempt struct {
	declared string               // version of the VolumeDiscovery
	found    flexlvmv1.Discovered // without its size, which is
	size     int64
}

func attemptOf(declared *flexlvmv1.VolumeDiscovery, found *flexlvmv1.Discovered) attempt {
	out := attempt{declared: declared.Version(), found: *found, size: found.Size.Value()}
	out.found.Size = resource.Quantity{} // equal ones may not be the same
	return out
}

// New returns a controller, which does nothing before Run.
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

// kicked has a round made when something comes, goes, or changes in what matters.
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

// discoversOther reports whether a NodeStorage says something else of what its node has discovered.
func discoversOther(was, now any) bool {
	a, b := &was.(*flexlvmv1.NodeStorage).Status, &now.(*flexlvmv1.NodeStorage).Status
	return a.DiscoveredFrom != b.DiscoveredFrom || !equality.Semantic.DeepEqual(a.Discovered, b.Discovered)
}

// Run works until ctx ends.
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

// wait waits for a time, or a kick; false when ctx has ended.
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

// round looks at all that nodes have discovered. What fails keeps nothing else from being done.
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

// counts reports whether a report is up to date: not if its node is silent, or if it follows from
// an earlier VolumeDiscovery.
func (c *Controller) counts(declared *flexlvmv1.VolumeDiscovery, report *flexlvmv1.NodeStorage) bool {
	age := c.Now().Sub(report.Status.ObservedTime.Time).Abs() // a report of the future would count long after its daemon is gone
	if declared == nil {
		return len(report.Status.Discovered) > 0 && age <= silent
	}
	if report.Status.DiscoveredFrom != declared.Version() || len(report.Status.Discovered) == 0 {
		return false // the node looks again, and reports
	}
	if age <= silent {
		return true
	}
	// The time in the message differs with each report of a node whose clock is ahead.
	c.tellOf(declared, warning{"NodeSilent", report.Name}, fmt.Sprintf("node %s last reported at %s, by its clock: no PersistentVolume is made of what it found then, and none that it cleaned is deleted; look at the pod of DaemonSet flexlvm-gc and at the clock there", report.Name, report.Status.ObservedTime.UTC().Format(time.RFC3339)))
	return false
}

// discovery returns the VolumeDiscovery; nil where there is none.
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

// known returns the PersistentVolume of a name, and remembers which offer it took.
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

// usedBy is the key of used: offers are counted for each disk.
func usedBy(name, disk string) string { return name + "\x00" + disk }

// offer makes the PersistentVolume of what is ready, once for each time that the node offers
// it: its report may be older than the end of the last one.
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

// make makes a PersistentVolume; nil where there is to be none. Only if nothing that is known of the node stands
// against that, the API server itself is asked for the node.
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
		return nil, nil // the watch is late, or it is another's, of which the next round tells nothing
	case err != nil:
		return nil, err
	}
	return made, nil
}

// build builds the PersistentVolume that may be made; nil where there is to be none.
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

// skips reports whether a PersistentVolume took this offer, or a later one, before. It tells if the
// node goes on offering: nothing is made of that until a person does something.
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

// selects reports whether a class is for a node; if not, the node will say so, too.
func (c *Controller) selects(declared *flexlvmv1.VolumeDiscovery, class *flexlvmv1.DiscoveryClass, node *corev1.Node) bool {
	selects, err := class.Selects(node.Labels)
	if err != nil {
		c.tell(declared, "ClassRefused", fmt.Sprintf("class %s: nodeSelector: %v", class.StorageClassName, err))
	}
	return err == nil && selects
}

// deleteCleaned deletes a PersistentVolume after which its node has cleaned, if it is still
// exactly that, and released by the claim after which it was cleaned: a person may have given it
// to another since.
func (c *Controller) deleteCleaned(ctx context.Context, node string, found *flexlvmv1.Discovered) error {
	v := c.known(Name(node, found.Path))
	if v == nil || string(v.UID) != found.PersistentVolumeUID || v.DeletionTimestamp != nil ||
		v.Spec.ClaimRef == nil || string(v.Spec.ClaimRef.UID) != found.ClaimUID || found.ClaimUID == "" ||
		v.Status.Phase != corev1.VolumeReleased || v.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return nil
	}
	return c.delete(ctx, v, "its node has cleaned it")
}

// deleteWithdrawn deletes a PersistentVolume of which its node says that kubelet would format data
// in it, if it is still exactly that, and no claim has it: who binds it writes the claim to it first.
func (c *Controller) deleteWithdrawn(ctx context.Context, node string, found *flexlvmv1.Discovered) error {
	v := c.known(Name(node, found.Path))
	if !found.Withdrawn || v == nil || string(v.UID) != found.PersistentVolumeUID || v.DeletionTimestamp != nil ||
		v.Spec.ClaimRef != nil || v.Status.Phase != corev1.VolumeAvailable {
		return nil
	}
	return c.delete(ctx, v, "its node has withdrawn it: "+found.Message)
}

// delete deletes a PersistentVolume as it was seen. Of one that has changed, or is gone, the watch
// will tell.
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
