package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// eventReleased is the reason of the event on a released PersistentVolume whose node has not released
// the volume yet.
const eventReleased = "WaitingForNode"

// Provisioner implements controller.Provisioner. Its only lasting effect is the PersistentVolume that
// Provision returns, so it may be killed at any instant: the object exists completely or not at all.
type Provisioner struct {
	Parts
}

// The result of an attempt, in the library's terms.
type state = controller.ProvisioningState

const (
	finished   = controller.ProvisioningFinished
	unchanged  = controller.ProvisioningNoChange
	reschedule = controller.ProvisioningReschedule
)

// Parts are the dependencies of a provisioner.
type Parts struct {
	Events  record.EventRecorder
	Cluster string // UID of the kube-system namespace
	// Door is the door of classes that name none; empty: Flex.
	Door        pv.Door
	Ledger      *ledger.Ledger
	Listers     Listers
	Refused     func(*controlplane.Refusal) // called for every refusal; may be nil
	rescheduled *rescheduleGuard            // nil: the library's cache is not guarded
}

// Listers read the API, from caches except for Live.
type Listers struct {
	Nodes   corelisters.NodeLister
	Claims  corelisters.PersistentVolumeClaimLister
	Classes storagelisters.StorageClassLister
	Volumes corelisters.PersistentVolumeLister
	// OnNode returns the PersistentVolumes with this node label value.
	OnNode func(label string) ([]*corev1.PersistentVolume, error)
	// Pods returns the pods without a node that use a claim. If the cache has none, it lists them from
	// the API server.
	Pods func(ctx context.Context, namespace, claim string) ([]*corev1.Pod, error)
	// Report returns the last report of a node; nil if there is none.
	Report func(node string) *flexlvmv1.NodeStorage
	Live   Live
}

// Live reads from the API server, never from a cache.
type Live struct {
	// Claim returns a claim.
	Claim func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	// Snapshot returns the handle of a VolumeSnapshot's snapshot.
	Snapshot func(ctx context.Context, namespace, name string) (handle string, err error)
	// Attributes returns a VolumeAttributesClass.
	Attributes func(ctx context.Context, name string) (*storagev1.VolumeAttributesClass, error)
	// Owner returns the metadata of a VolumeManager.
	Owner func(ctx context.Context, namespace, name string) (*metav1.PartialObjectMetadata, error)
}

// Interfaces of the library, of which some are optional.
var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
)

// NewProvisioner returns a provisioner.
func NewProvisioner(parts Parts) *Provisioner {
	if parts.Refused == nil {
		parts.Refused = func(*controlplane.Refusal) {}
	}
	return &Provisioner{parts}
}

// ShouldProvision skips claims that are being deleted, because their volumes would be released before
// anybody could use them, and outdated states of claims.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil && (p.rescheduled == nil || !p.rescheduled.outdated(claim))
}

// SupportsBlock returns true for every class: the library would refuse block volumes without advice, so
// Provision refuses them where they are not supported.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Provision returns the PersistentVolume for a claim, once room is reserved for it and for the other
// claims of its pod.
//
//   - The claim and its classes are checked first: a Refusal is final.
//   - If the node is gone or has no room, the claim returns to the scheduler.
//   - If the node has no hostname label, which a person must set, or the API server does not respond,
//     the claim is retried.
func (p *Provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	request := Request{PVName: o.PVName, Claim: o.PVC, Class: o.StorageClass, Cluster: p.Cluster, Door: p.Door}
	spec, parameters, err := p.check(ctx, request)
	if err != nil {
		return nil, finished, p.countRefusal(err)
	}
	if request.clones() {
		spec, node, state, err := p.provisionCopy(ctx, request, spec, o.SelectedNodeName != "")
		if err != nil {
			return nil, state, p.countRefusal(err)
		}
		return request.PersistentVolume(spec, parameters, node), finished, nil
	}
	if err := p.checkOwnerOfReplica(ctx, request); err != nil {
		return nil, finished, p.countRefusal(err)
	}
	if o.SelectedNodeName == "" {
		return p.provisionAnywhere(request, spec, parameters)
	}
	node, state, err := p.node(request.Class, o.SelectedNodeName)
	if err != nil {
		return nil, state, err
	}
	if err := p.checkNoOtherReplica(request, node.Name); err != nil {
		return nil, reschedule, err
	}
	sets, err := p.podVolumeSets(ctx, request, spec, node.Name)
	if err != nil {
		return nil, stateFor(err), err
	}
	uuids, err := p.reserveOne(node.Name, sets)
	if err != nil {
		return nil, reschedule, err
	}
	spec.GroupUUID = uuids[spec.Pool()]
	return request.PersistentVolume(spec, parameters, node), finished, nil
}

// check checks a claim, its class and its VolumeAttributesClass, and returns the volume's spec and parameters. A *Refusal
// is final; any other error may be transient.
func (p *Provisioner) check(ctx context.Context, request Request) (volume.Spec, Parameters, error) {
	spec, parameters, err := request.Check()
	if err != nil {
		return spec, parameters, err
	}
	if parameters.IOLimits, err = p.limits(ctx, request.Claim, parameters.IOLimits); err != nil {
		return spec, parameters, err
	}
	return spec, parameters, checkIOLimits(spec, parameters.IOLimits)
}

// provisionAnywhere serves a class that binds immediately. If the node has just filled up, the claim is
// retried.
func (p *Provisioner) provisionAnywhere(request Request, spec volume.Spec, parameters Parameters) (*corev1.PersistentVolume, state, error) {
	want := ledger.Want{PV: request.PVName, Claim: request.Claim.Name, Spec: spec}
	name, err := p.chooseNode(request.Class, parameters, want)
	if err != nil {
		return nil, finished, err
	}
	node, _, err := p.node(request.Class, name)
	if err != nil {
		return nil, finished, err
	}
	uuids, err := p.Ledger.Reserve(name, []ledger.Want{want})
	if err != nil {
		return nil, finished, err
	}
	spec.GroupUUID = uuids[spec.Pool()]
	return request.PersistentVolume(spec, parameters, node), finished, nil
}

// countRefusal counts a Refusal, and returns err.
func (p *Provisioner) countRefusal(err error) error {
	if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
		p.Refused(refusal)
	}
	return err
}

// podVolumeSets returns, for each pod that waits for the requested volume, this volume and the others that
// the pod needs and does not have yet; the largest set comes first. If one claim of a pod got its
// volume and another found no room, the pod would hold the first volume forever. A pod that another of
// its claims prevents from ever starting is ignored, unless there are only such pods.
func (p *Provisioner) podVolumeSets(ctx context.Context, request Request, spec volume.Spec, node string) ([]podVolumes, error) {
	namespace, asked := request.Claim.Namespace, ledger.Want{PV: request.PVName, Claim: request.Claim.Name, Spec: spec}
	pods, err := p.Listers.Pods(ctx, namespace, asked.Claim)
	if err != nil {
		return nil, err
	}
	var sets []podVolumes
	var lastErr error
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		set, err := p.volumesOfPod(ctx, pod, asked, node)
		if err != nil {
			lastErr = err
			continue
		}
		sets = append(sets, set)
	}
	slices.SortStableFunc(sets, func(a, b podVolumes) int { return cmp.Compare(len(b.wants), len(a.wants)) })
	switch {
	case len(sets) > 0:
		return sets, nil
	case lastErr != nil:
		return nil, lastErr
	}
	return []podVolumes{{wants: []ledger.Want{asked}}}, nil
}

// podVolumes are the volumes that a pod needs on the same node.
type podVolumes struct {
	wants []ledger.Want
	reads []volume.Name // volumes of the datasets that it reads
}

// volumesOfPod returns asked and the other volumes that the pod needs on the node.
func (p *Provisioner) volumesOfPod(ctx context.Context, pod *corev1.Pod, asked ledger.Want, node string) (podVolumes, error) {
	out := podVolumes{wants: []ledger.Want{asked}}
	for _, name := range otherClaims(pod, asked.Claim) {
		want, needed, err := p.otherClaimVolume(ctx, pod.Namespace, name, node)
		if err != nil {
			if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
				err = errors.New(err.Error()) // the refusal is of the other claim, and must not make this one infeasible
			}
			return podVolumes{}, fmt.Errorf("pod %q, which uses this claim, also needs claim %q: %w", pod.Name, name, err)
		}
		if needed {
			out.wants = append(out.wants, want)
		} else if hash, reads := p.datasetReadBy(pod.Namespace, name); reads {
			out.reads = append(out.reads, replica.VolumeName(hash))
		}
	}
	return out, nil
}

// datasetReadBy returns the dataset that is read through a claim; false if there is none.
func (p *Provisioner) datasetReadBy(namespace, claim string) (hash string, reads bool) {
	found, err := p.Listers.Claims.PersistentVolumeClaims(namespace).Get(claim)
	if err != nil {
		return "", false
	}
	// It may be one that another namespace offers. A PersistentVolume that is not cached yet has no
	// readers yet.
	if v, err := p.Listers.Volumes.Get(found.Spec.VolumeName); err == nil && replica.IsHash(v.Labels[replica.LabelShared]) {
		return v.Labels[replica.LabelShared], true
	}
	return replica.ReadBy(found.Spec.VolumeName)
}

// reserveOne reserves the first set that fits: a pod that does not fit must not block another pod from
// a claim that they share.
func (p *Provisioner) reserveOne(node string, sets []podVolumes) (map[volume.PoolName]string, error) {
	var first error
	for _, one := range sets {
		uuids, err := p.Ledger.Reserve(node, one.wants, one.reads...)
		if err == nil {
			return uuids, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// otherClaimVolume returns the volume that a claim of the same pod needs on the node; false if it is bound,
// served by another provisioner, or not tied to the pod's node. The error is an *OtherNodeError if it cannot
// be on this node.
func (p *Provisioner) otherClaimVolume(ctx context.Context, namespace, name, node string) (ledger.Want, bool, error) {
	other, err := p.Listers.Claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return ledger.Want{}, false, err
	}
	if other.Spec.VolumeName != "" {
		return ledger.Want{}, false, p.checkBoundNode(other, node)
	}
	if other.Spec.StorageClassName == nil || *other.Spec.StorageClassName == "" {
		return ledger.Want{}, false, nil
	}
	class, err := p.Listers.Classes.Get(*other.Spec.StorageClassName)
	if err != nil {
		return ledger.Want{}, false, err
	}
	if class.Provisioner != pv.Provisioner || !waits(class) {
		return ledger.Want{}, false, nil
	}
	request := Request{PVName: persistentvolume.NameFor(other.UID), Claim: other, Class: class, Cluster: p.Cluster, Door: p.Door}
	spec, _, err := p.check(ctx, request)
	if err == nil && request.clones() {
		err = p.setOrigin(ctx, request, &spec, node)
	}
	return ledger.Want{PV: request.PVName, Claim: name, Spec: spec}, err == nil, err
}

// waits reports whether claims of a class wait for a pod (WaitForFirstConsumer).
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// node returns the node with this name, if the class allows it.
func (p *Provisioner) node(class *storagev1.StorageClass, name string) (Node, state, error) {
	node, err := p.Listers.Nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return Node{}, reschedule, fmt.Errorf("node %q is gone from the cluster; the scheduler is asked for another", name)
	case err != nil:
		return Node{}, unchanged, fmt.Errorf("get node %q: %w", name, err)
	case !allowed(class, node): // the claim's author, too, can name a node
		return Node{}, reschedule, fmt.Errorf("StorageClass %q does not allow node %q (allowedTopologies)", class.Name, name)
	}
	hostname := hostnameLabel(node)
	if hostname == "" {
		return Node{}, finished, fmt.Errorf(
			"node %q has no label %s, by which a volume is tied to its node; label the node; the claim is retried", name, corev1.LabelHostname)
	}
	return Node{Name: name, Hostname: hostname}, finished, nil
}

// Delete never removes anything: the logical volume is on a node, whose daemon releases it and then
// removes the finalizer. If Delete reported success, the PersistentVolume would be deleted while the
// disk stays full.
//
// The library also calls it for a PersistentVolume that it could not create. That object has no UID, no
// node has ever seen it, and there is nothing to undo. Its reservation is left to expire: the API
// server may have stored the object although its response was lost.
func (p *Provisioner) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	if volume.UID == "" {
		return nil
	}
	node := hostnameOf(volume)
	p.Events.Eventf(volume, corev1.EventTypeNormal, eventReleased,
		"the claim is gone; the node daemon of node %q releases volume %q and then removes the finalizer %s; if this lasts, see whether its pod of DaemonSet flexlvm-gc runs", node, volume.Name, pv.Finalizer)
	return &controller.IgnoredError{Reason: fmt.Sprintf("only node %q can take its logical volume back", node)}
}

func hostnameLabel(node *corev1.Node) string { return node.Labels[corev1.LabelHostname] }

// hostnameOf returns the hostname of a flexlvm volume's node, for messages; "" if there is none.
func hostnameOf(volume *corev1.PersistentVolume) string {
	if names := persistentvolume.Hostnames(volume); len(names) > 0 {
		return names[0]
	}
	return ""
}
