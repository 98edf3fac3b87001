package nodeloss

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const (
	// warnEvery is how often the event of a lasting state is sent again: events expire after an hour.
	warnEvery = time.Hour
	// lossTimeout bounds each request to the API server.
	lossTimeout = 30 * time.Second
	// nodePage is the number of nodes in one page of a list, which bounds its memory.
	nodePage = 500
	// roundTime is how long a round uses one list of the nodes. What it has not done by then is left to the
	// next round, which lists them again.
	roundTime = 15 * time.Second
	// spread is the random fraction by which the pauses between rounds are longer.
	spread = 0.2
)

// Config configures the watch for lost nodes.
type Config struct {
	// Client deletes what is lost. It should have a rate limit of its own: a lost node may have carried
	// hundreds of volumes, and other claims must not wait for them.
	Client kubernetes.Interface
	// ListNodes lists the metadata of nodes.
	ListNodes func(context.Context, metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	// EachPod calls each with every pod of a namespace. It holds one page of pods at a time.
	EachPod func(ctx context.Context, namespace string, each func(*corev1.Pod)) error
	Events  record.EventRecorder
	Cluster string
	Metrics *Metrics
	Grace   time.Duration // how long a node is missing before it is lost
	Now     func() time.Time
}

// A Controller carries out what judge decides. Only its memory knows when a node was first missed, so a new
// process starts the grace period again.
type Controller struct {
	Config
	seen Seen

	missed  map[string]time.Time
	doubted time.Time
	doubt   string
	warned  map[announcement]time.Time
	// failed is when a verdict about a PersistentVolume last failed.
	failed map[types.UID]time.Time
}

// An announcement identifies an event that was sent about a PersistentVolume.
type announcement struct {
	volume types.UID
	reason string
}

// Seen are the caches.
type Seen struct {
	Nodes  corelisters.NodeLister
	Claims corelisters.PersistentVolumeClaimLister
	// Bearing returns the nodes that PersistentVolumes name, as the value of pv.LabelNode or, for volumes that
	// a node discovered, LabelDiscoveredOn; Volumes returns the PersistentVolumes of one of them. Volumes
	// should be lazy: of a node that exists, a round reads only up to the first volume that counts. Discovered
	// volumes do not count: a person decides about them.
	Bearing func() []string
	Volumes func(label string) (iter.Seq[*corev1.PersistentVolume], error)
	Synced  []cache.InformerSynced
}

// New returns a controller that reads from seen and confirms with the API server.
func New(config Config, seen Seen) *Controller {
	return &Controller{
		Config: config, seen: seen, missed: map[string]time.Time{}, warned: map[announcement]time.Time{}, failed: map[types.UID]time.Time{},
	}
}

// Run watches for lost nodes until ctx ends.
func (l *Controller) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), l.seen.Synced...) {
		return
	}
	every := min(max(l.Grace/10, time.Second), 30*time.Second)
	wait.JitterUntilWithContext(ctx, func(ctx context.Context) {
		for more := true; more && ctx.Err() == nil; {
			var err error
			if more, err = l.round(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "The volumes of lost nodes are checked again")
			}
		}
	}, every, spread, true)
}

// round makes one pass over all volumes, and reports whether there is more to do immediately: it does so when its
// time is over, if something succeeded. The caches show whether there is anything to do; before any action, the nodes
// are listed from the API server.
func (l *Controller) round(ctx context.Context) (more bool, err error) {
	cached, err := l.seen.Nodes.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list the nodes that were seen: %w", err)
	}
	var nodes []nodeIdentity
	for _, n := range cached {
		nodes = append(nodes, nodeIdentity{name: n.Name, hostname: n.Labels[corev1.LabelHostname]})
	}
	volumes, err := l.localVolumes(nodes)
	if err != nil {
		return false, err
	}
	if len(l.due(l.judge(ctx, nodes, volumes))) == 0 {
		return false, nil
	}
	began := l.Now()
	asked, err := l.listAllNodes(ctx)
	if err != nil {
		return false, fmt.Errorf("nothing is done about lost nodes: %w", err)
	}
	// A node exists if the cache or the API server has it.
	due := l.due(l.judge(ctx, append(asked, nodes...), volumes))
	l.sortByFailure(due)
	var failed []error
	succeeded := false
	pods := listedPods{}
	for _, v := range due {
		if l.Now().Sub(began) >= roundTime {
			return succeeded, errors.Join(failed...)
		}
		if err := l.carryOut(ctx, v, volumes, pods); err != nil {
			failed = append(failed, err)
			l.failed[v.volume.object.UID] = l.Now()
			continue
		}
		succeeded = true
		delete(l.failed, v.volume.object.UID)
	}
	return false, errors.Join(failed...)
}

// sortByFailure moves the verdicts that have failed to the end, the last failure last: what fails in each round, and
// slowly, then delays nothing else forever. It forgets the failures of verdicts that are no longer due.
func (l *Controller) sortByFailure(due []verdict) {
	isDue := make(map[types.UID]bool, len(due))
	for _, v := range due {
		isDue[v.volume.object.UID] = true
	}
	maps.DeleteFunc(l.failed, func(uid types.UID, _ time.Time) bool { return !isDue[uid] })
	slices.SortStableFunc(due, func(a, b verdict) int {
		return l.failed[a.volume.object.UID].Compare(l.failed[b.volume.object.UID])
	})
}

// localVolumes returns the volumes that judge needs: all of a node that is not in nodes by its name, and one of
// each other node, which shows that the node carries volumes.
func (l *Controller) localVolumes(nodes []nodeIdentity) ([]localVolume, error) {
	known := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		known[pv.NodeLabelValue(n.name)] = true
	}
	var out []localVolume
	for _, node := range l.seen.Bearing() {
		one := -1 // index of the volume of this node, if the node is known
		objects, err := l.seen.Volumes(node)
		if err != nil {
			return nil, fmt.Errorf("list the PersistentVolumes of node %q that were seen: %w", node, err)
		}
		for object := range objects {
			v, ours := localVolumeOf(object, l.Cluster)
			if !ours {
				continue
			}
			if known[node] {
				if one < 0 {
					one, out = len(out), append(out, v)
				}
				if !v.retained() { // preferred, because a retained volume may not count
					out[one] = v
					break
				}
				continue
			}
			if ref := object.Spec.ClaimRef; ref != nil {
				claim, err := l.seen.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
				if err == nil && boundTo(claim, object) {
					v.claim = claim
				}
			}
			out = append(out, v)
		}
	}
	return out, nil
}

// judge runs judge, keeps what the next round needs, and logs changes.
func (l *Controller) judge(ctx context.Context, nodes []nodeIdentity, volumes []localVolume) []verdict {
	found := judge(observed{
		nodes: nodes, volumes: volumes, missed: l.missed, doubted: l.doubted, now: l.Now(), grace: l.Grace,
	})
	log := klog.FromContext(ctx)
	for _, node := range slices.Sorted(maps.Keys(found.missed)) {
		if _, known := l.missed[node]; !known {
			log.Info("A node that carries volumes is missing from the API; it counts as lost if it stays away", "node", node, "grace", l.Grace)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(l.missed)) {
		if _, still := found.missed[node]; !still {
			log.Info("A node that was missing is back, or its last volume is gone", "node", node)
		}
	}
	if found.doubt != "" && found.doubt != l.doubt {
		log.Info("Nothing is given up for lost nodes: the API server may have been restored from an old backup", "because", found.doubt)
	}
	l.missed, l.doubted, l.doubt = found.missed, found.doubted, found.doubt
	l.Metrics.nodesLost(len(found.lost), found.doubt != "")
	return found.verdicts
}

// due leaves out events that were sent not long ago.
func (l *Controller) due(verdicts []verdict) []verdict {
	now := l.Now()
	maps.DeleteFunc(l.warned, func(_ announcement, at time.Time) bool { return now.Sub(at) >= warnEvery })
	return slices.DeleteFunc(verdicts, func(v verdict) bool {
		_, warned := l.warned[announcement{v.volume.object.UID, v.reason}]
		return v.action == lossTell && warned
	})
}

// listAllNodes lists the nodes from the API server: without a resourceVersion the answer is not older than the
// request. An answer without nodes is an error.
func (l *Controller) listAllNodes(ctx context.Context) ([]nodeIdentity, error) {
	ctx, cancel := context.WithTimeout(ctx, lossTimeout)
	defer cancel()
	var out []nodeIdentity
	for options := (metav1.ListOptions{Limit: nodePage}); ; {
		page, err := l.ListNodes(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range page.Items {
			n := &page.Items[i]
			out = append(out, nodeIdentity{name: n.Name, hostname: n.Labels[corev1.LabelHostname]})
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	if len(out) == 0 {
		return nil, errors.New("list nodes: the API server knows no node at all")
	}
	return out, nil
}

// stillGone checks with the API server once more, right before something is given up, that a node is gone: by
// its name, or, if only a hash of the name is known, by a list of all nodes.
func (l *Controller) stillGone(ctx context.Context, node string, volumes []localVolume) (bool, error) {
	if !pv.IsNodeName(node) {
		asked, err := l.listAllNodes(ctx)
		return err == nil && stillLost(node, asked, volumes), err
	}
	ctx, cancel := context.WithTimeout(ctx, lossTimeout)
	defer cancel()
	switch _, err := l.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("get node: %w", err)
	}
	return false, nil
}

// carryOut carries out one verdict. The process may be killed after each change: the next process finds the
// claim or the PersistentVolume as it was left, and continues from there.
func (l *Controller) carryOut(ctx context.Context, v verdict, volumes []localVolume, pods listedPods) error {
	if v.action == lossTell {
		l.warned[announcement{v.volume.object.UID, v.reason}] = l.Now()
		l.tell(v, corev1.EventTypeWarning)
		return nil
	}
	gone, err := l.stillGone(ctx, v.volume.node, volumes)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s of node %q stays as it is: %w", v.volume.object.Name, v.volume.node, err)
	}
	if !gone {
		return nil // the next round observes and logs it
	}
	ctx, cancel := context.WithTimeout(ctx, lossTimeout)
	defer cancel()
	if v.action == lossReleaseClaim {
		return l.releaseClaim(ctx, v, pods)
	}
	return l.giveUp(ctx, v)
}

// asJudged reports whether the API server still has the PersistentVolume exactly as it was judged: it
// determines what happens to its claim, and a person may have set it to keep since.
func (l *Controller) asJudged(ctx context.Context, v verdict) (bool, error) {
	seen := v.volume.object
	now, err := l.Client.CoreV1().PersistentVolumes().Get(ctx, seen.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get PersistentVolume %s of lost node %q: %w", seen.Name, v.volume.node, err)
	}
	return now.UID == seen.UID && now.ResourceVersion == seen.ResourceVersion, nil
}

// releaseClaim deletes the claim, if it and its PersistentVolume are exactly as judged. kube-controller-manager
// then sets the PersistentVolume to Released.
func (l *Controller) releaseClaim(ctx context.Context, v verdict, pods listedPods) error {
	if same, err := l.asJudged(ctx, v); err != nil || !same {
		return err // the next round judges its new state
	}
	claim := v.volume.claim
	err := l.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete claim %s/%s of lost node %q: %w", claim.Namespace, claim.Name, v.volume.node, err)
	}
	l.Metrics.claimReleased()
	klog.FromContext(ctx).Info("The claim of a lost node is released", "claim", klog.KObj(claim), "persistentvolume", v.volume.object.Name, "node", v.volume.node)
	l.tell(v, corev1.EventTypeWarning)
	l.announceToPods(ctx, v, pods)
	return nil
}

// giveUp removes flexlvm's finalizer and deletes the object, if it is exactly as judged. Killed in between, it
// leaves a released object without a node and without flexlvm's finalizer, which is deleted the next time.
func (l *Controller) giveUp(ctx context.Context, v verdict) error {
	object, volumes := v.volume.object, l.Client.CoreV1().PersistentVolumes()
	if slices.Contains(object.Finalizers, pv.Finalizer) {
		patch := kubeobject.FinalizersPatch(object, kubeobject.WithoutFinalizer(object, pv.Finalizer))
		now, err := volumes.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("take the finalizer off PersistentVolume %s of lost node %q: %w", object.Name, v.volume.node, err)
		}
		object = now
	}
	if object.DeletionTimestamp == nil {
		err := volumes.Delete(ctx, object.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete PersistentVolume %s of lost node %q: %w", object.Name, v.volume.node, err)
		}
	}
	klog.FromContext(ctx).Info("The PersistentVolume of a lost node is given up", "persistentvolume", object.Name, "node", v.volume.node)
	l.tell(v, corev1.EventTypeNormal)
	return nil
}

// tell sends the event for the PersistentVolume and for the claim that is bound to it.
func (l *Controller) tell(v verdict, kind string) {
	l.Events.Event(v.volume.object, kind, v.reason, v.why)
	if v.volume.claim != nil {
		l.Events.Event(v.volume.claim, kind, v.reason, v.why)
	}
}
