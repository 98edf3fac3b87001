// Package provision is the control side: it turns claims of flexlvm classes into
// PersistentVolumes on the nodes that the scheduler chose. It creates nothing on a node;
// the node daemon does that, or the driver at the first mount, from the options of the
// PersistentVolume alone.
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

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// eventReleased is the reason of the event on a PersistentVolume that was
// released and whose node has not taken the volume back yet.
const eventReleased = "WaitingForNode"

// Provisioner implements controller.Provisioner. Its only lasting effect is the
// PersistentVolume that Provision returns, so it may be killed at any instant: the object
// exists whole or not at all.
type Provisioner struct {
	Parts
}

// What becomes of a claim, in the library's words.
type state = controller.ProvisioningState

const (
	finished   = controller.ProvisioningFinished
	unchanged  = controller.ProvisioningNoChange
	reschedule = controller.ProvisioningReschedule
)

// Parts are what a provisioner works with.
type Parts struct {
	Events  record.EventRecorder
	Cluster string // UID of the kube-system namespace
	// Door is that of classes that name none; empty: Flex.
	Door    pv.Door
	Ledger  *ledger.Ledger
	Listers Listers
	Refused func(*controlplane.Refusal) // told of every refusal; nil is allowed
	given   *rescheduleGuard            // nil: the library's cache is not guarded
}

// Listers read the API, from caches but for Live.
type Listers struct {
	Nodes   corelisters.NodeLister
	Claims  corelisters.PersistentVolumeClaimLister
	Classes storagelisters.StorageClassLister
	Volumes corelisters.PersistentVolumeLister
	// OnNode returns the PersistentVolumes of a node, by the value of its label.
	OnNode func(label string) ([]*corev1.PersistentVolume, error)
	// Pods returns the pods without a node that use a claim. Where the cache has none, it asks the API server.
	Pods func(ctx context.Context, namespace, claim string) ([]*corev1.Pod, error)
	Live Live
}

// Live asks the API server, never a cache.
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

// Interfaces of the library, some of them optional.
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

// ShouldProvision skips claims that are being deleted, because their volumes would be
// released before anybody could use them, and claims that are out of date.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil && (p.given == nil || !p.given.outdated(claim))
}

// SupportsBlock is true for every class: the library would refuse block volumes without saying
// what to do, so Provision does it where they are not supported.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Provision returns the PersistentVolume for a claim, once room is reserved for it and
// for the other claims of its pod.
//
//   - The claim and its classes are checked first: a Refusal is final.
//   - If the node is gone or has no room, the claim goes back to the scheduler.
//   - If the node has no hostname label, which a person must fix, or the API server does
//     not answer, the claim is tried again.
func (p *Provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	request := Request{PVName: o.PVName, Claim: o.PVC, Class: o.StorageClass, Cluster: p.Cluster, Door: p.Door}
	spec, parameters, err := request.Check()
	if err != nil {
		return nil, finished, p.countRefusal(err)
	}
	if parameters.IOLimits, err = p.limits(ctx, o.PVC, parameters.IOLimits); err != nil {
		return nil, finished, p.countRefusal(err)
	}
	if err := limitable(spec, parameters.IOLimits); err != nil {
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
	sets, err := p.together(ctx, request, spec, node.Name)
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

// provisionAnywhere serves a class that binds at once. A node that filled up in
// this moment is no matter: the claim is tried again.
func (p *Provisioner) provisionAnywhere(request Request, spec volume.Spec, parameters Parameters) (*corev1.PersistentVolume, state, error) {
	name, err := p.choose(request.Class, parameters, spec.Size)
	if err != nil {
		return nil, finished, err
	}
	node, _, err := p.node(request.Class, name)
	if err != nil {
		return nil, finished, err
	}
	uuids, err := p.Ledger.Reserve(name, []ledger.Want{{PV: request.PVName, Claim: request.Claim.Name, Spec: spec}})
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

// together are the volume that is asked for and those that a pod needs with it and
// has not yet, for each pod that waits for it; the pod that needs most comes first.
// A pod of which one claim had its volume and another found no room would hold the
// one for ever. A pod that another of its claims keeps from ever starting does not
// count, unless there is none but such.
func (p *Provisioner) together(ctx context.Context, request Request, spec volume.Spec, node string) ([]set, error) {
	namespace, asked := request.Claim.Namespace, ledger.Want{PV: request.PVName, Claim: request.Claim.Name, Spec: spec}
	pods, err := p.Listers.Pods(ctx, namespace, asked.Claim)
	if err != nil {
		return nil, err
	}
	var sets []set
	var hopeless error
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		set, err := p.needs(ctx, pod, asked, node)
		if err != nil {
			hopeless = err
			continue
		}
		sets = append(sets, set)
	}
	slices.SortStableFunc(sets, func(a, b set) int { return cmp.Compare(len(b.wants), len(a.wants)) })
	switch {
	case len(sets) > 0:
		return sets, nil
	case hopeless != nil:
		return nil, hopeless
	}
	return []set{{wants: []ledger.Want{asked}}}, nil
}

// A set is what a pod needs on a node together.
type set struct {
	wants []ledger.Want
	reads []volume.Name // volumes of the datasets that it reads
}

// needs are asked and what else its pod needs on the node.
func (p *Provisioner) needs(ctx context.Context, pod *corev1.Pod, asked ledger.Want, node string) (set, error) {
	out := set{wants: []ledger.Want{asked}}
	for _, name := range companions(pod, asked.Claim) {
		want, needed, err := p.companion(ctx, pod.Namespace, name, node)
		if err != nil {
			if refusal := (*controlplane.Refusal)(nil); errors.As(err, &refusal) {
				err = errors.New(err.Error()) // of the other claim, and the library must not take it for this one's
			}
			return set{}, fmt.Errorf("pod %q, which uses this claim, also needs claim %q: %w", pod.Name, name, err)
		}
		if needed {
			out.wants = append(out.wants, want)
		} else if hash, reads := p.reads(pod.Namespace, name); reads {
			out.reads = append(out.reads, replica.VolumeName(hash))
		}
	}
	return out, nil
}

// reads is the dataset that is read by a claim; false where none is.
func (p *Provisioner) reads(namespace, claim string) (hash string, reads bool) {
	found, err := p.Listers.Claims.PersistentVolumeClaims(namespace).Get(claim)
	if err != nil {
		return "", false
	}
	// It may be one that another namespace offers. One that is not seen yet is read by nobody yet.
	if v, err := p.Listers.Volumes.Get(found.Spec.VolumeName); err == nil && replica.IsHash(v.Labels[replica.LabelShared]) {
		return v.Labels[replica.LabelShared], true
	}
	return replica.ReadBy(found.Spec.VolumeName)
}

// reserveOne reserves the first set that fits: a pod that does not fit must not keep
// another from a claim that they share.
func (p *Provisioner) reserveOne(node string, sets []set) (map[volume.PoolName]string, error) {
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

// companion is what a claim of the same pod will want on the node; false where it is
// served already, by others, or wherever it likes. The error is an *Elsewhere where it
// cannot be there.
func (p *Provisioner) companion(ctx context.Context, namespace, name, node string) (ledger.Want, bool, error) {
	other, err := p.Listers.Claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return ledger.Want{}, false, err
	}
	if other.Spec.VolumeName != "" {
		return ledger.Want{}, false, p.settledElsewhere(other, node)
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
	spec, _, err := request.Check()
	if err == nil && request.clones() {
		err = p.copyElsewhere(ctx, request, &spec, node)
	}
	return ledger.Want{PV: request.PVName, Claim: name, Spec: spec}, err == nil, err
}

// waits reports whether claims of a class wait for a pod.
func waits(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// node is the node with this name, if the class allows it.
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
			"node %q has no label %s, by which a volume is tied to its node; label the node, the claim is tried again by itself", name, corev1.LabelHostname)
	}
	return Node{Name: name, Hostname: hostname}, finished, nil
}

// Delete never removes anything: the logical volume is on a node, whose daemon releases
// it and then removes the finalizer. If Delete reported success, the PersistentVolume
// would be deleted and the disk stay full.
//
// The library also calls it for a PersistentVolume that it could not create. That has no
// UID, no node has ever seen it, and there is nothing to undo. Its reservation is left to
// lapse: the API server may have stored the object without saying so.
func (p *Provisioner) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	if volume.UID == "" {
		return nil
	}
	node := hostnameOf(volume)
	p.Events.Eventf(volume, corev1.EventTypeNormal, eventReleased,
		"the claim is gone; the node daemon of node %q releases volume %q and then removes the finalizer %s; if this lasts, see whether its pod of DaemonSet flexlvm-gc runs", node, volume.Name, pv.Finalizer)
	return &controller.IgnoredError{Reason: fmt.Sprintf("only node %q can take its logical volume back", node)}
}

// hostnameLabel is the value of a node's label kubernetes.io/hostname.
func hostnameLabel(node *corev1.Node) string { return node.Labels[corev1.LabelHostname] }

// hostnameOf is the node of a flexlvm volume, for people to read; empty where none is named.
func hostnameOf(volume *corev1.PersistentVolume) string {
	if names := persistentvolume.Hostnames(volume); len(names) > 0 {
		return names[0]
	}
	return ""
}
