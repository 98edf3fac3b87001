// Package provision is the control side: it turns claims of flexlvm classes into
// PersistentVolumes on the nodes that the scheduler chose. Nothing is created on
// a node here; the driver does that at the first mount, from the options of the
// PersistentVolume alone.
package provision

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// eventReleased is the reason of the event on a PersistentVolume that was
// released and whose node has not taken the volume back yet.
const eventReleased = "WaitingForNode"

// Provisioner implements controller.Provisioner. Its only effect is the
// PersistentVolume that Provision returns, so it may be killed at any instant:
// the object is there in whole or not at all.
type Provisioner struct {
	client  kubernetes.Interface
	events  record.EventRecorder
	cluster string
	refused func(*Refusal)
}

// Interfaces by which the library asks more of a provisioner than it must have.
var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
)

// NewProvisioner makes a provisioner for the cluster whose kube-system namespace
// has the UID cluster. refused is told of every refusal; nil is allowed.
func NewProvisioner(client kubernetes.Interface, events record.EventRecorder, cluster string, refused func(*Refusal)) *Provisioner {
	if refused == nil {
		refused = func(*Refusal) {}
	}
	return &Provisioner{client: client, events: events, cluster: cluster, refused: refused}
}

// ShouldProvision passes over claims that are being deleted: a volume for one
// would be released before anybody could use it.
func (p *Provisioner) ShouldProvision(_ context.Context, claim *corev1.PersistentVolumeClaim) bool {
	return claim.DeletionTimestamp == nil
}

// SupportsBlock is true although block volumes are not supported: the library
// would refuse them without saying what to do, so Provision does it.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Provision gives the PersistentVolume for a claim.
//
//   - What the claim and its class say decides first: a Refusal is final.
//   - A node that is gone gives the claim back to the scheduler.
//   - A node without a hostname is for a person to mend, an API server that does
//     not answer will recover: both are tried again.
func (p *Provisioner) Provision(ctx context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	request := Request{PVName: o.PVName, Claim: o.PVC, Class: o.StorageClass, Cluster: p.cluster}
	spec, parameters, err := request.Check()
	if err == nil && o.SelectedNodeName == "" {
		err = refuseImmediate(o.StorageClass.Name)
	}
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		p.refused(refusal)
	}
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	node, state, err := p.node(ctx, o.SelectedNodeName)
	if err != nil {
		return nil, state, err
	}
	return request.PersistentVolume(spec, parameters, node), controller.ProvisioningFinished, nil
}

func refuseImmediate(class string) *Refusal {
	return &Refusal{Problems: []string{fmt.Sprintf(
		"no node is selected: StorageClass %q has volumeBindingMode Immediate, and a local volume can only be made where its pod will run; create the class again with volumeBindingMode WaitForFirstConsumer", class)}}
}

func (p *Provisioner) node(ctx context.Context, name string) (Node, controller.ProvisioningState, error) {
	node, err := p.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return Node{}, controller.ProvisioningReschedule, fmt.Errorf("node %q is gone from the cluster; the scheduler is asked for another", name)
	case err != nil:
		return Node{}, controller.ProvisioningNoChange, fmt.Errorf("get node %q: %w", name, err)
	}
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		return Node{}, controller.ProvisioningFinished, fmt.Errorf(
			"node %q has no label %s, by which a volume is tied to its node; label the node, the claim is tried again by itself", name, corev1.LabelHostname)
	}
	return Node{Name: name, Hostname: hostname}, controller.ProvisioningFinished, nil
}

// Delete never removes anything: the logical volume is on a node, and what runs
// there takes it back and then drops the finalizer. Saying that it was deleted
// would let the PersistentVolume go and leave the disk full.
//
// The library also calls it for a PersistentVolume that it could not create.
// Such a one has no UID, no node has ever seen it, and there is nothing to undo.
func (p *Provisioner) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	if volume.UID == "" {
		return nil
	}
	node := hostnameOf(volume)
	p.events.Eventf(volume, corev1.EventTypeNormal, eventReleased,
		"the claim is gone; logical volume %q stays on node %q until flexlvm there has taken it back and removed the finalizer", volume.Name, node)
	return &controller.IgnoredError{Reason: fmt.Sprintf("only node %q can take its logical volume back", node)}
}

// hostnameOf tells the node of a volume of ours, for people to read.
func hostnameOf(volume *corev1.PersistentVolume) string {
	affinity := volume.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return ""
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == corev1.LabelHostname && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}
