package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const (
	// publishDelay batches changes: provisioning a claim changes a node's account three times.
	publishDelay = 100 * time.Millisecond
	// publishers is how many nodes are processed at the same time.
	publishers = 4
)

// A publisher keeps the CSIStorageCapacity objects of all nodes, node groups and classes up to date.
// Its queue holds node labels, and node groups with the prefix groupKey.
type publisher struct {
	client     kubernetes.Interface
	namespace  string
	ledger     *ledger.Ledger
	listers    Listers
	capacities storagelisters.CSIStorageCapacityNamespaceLister
	queue      workqueue.TypedRateLimitingInterface[string]
	metrics    *Metrics
	avoidBusy  bool // offer less if disks are busy
	groups     []NodeGroup
	door       pv.Door // of classes that name none
	// report reads the report of a node from the API server.
	report func(ctx context.Context, node string) (*flexlvmv1.NodeStorage, error)
}

// enqueue queues a node whose capacities may be outdated.
func (p *publisher) enqueue(label string) { p.queue.AddAfter(label, publishDelay) }

// enqueueAll queues all nodes and groups, after a class was created, changed or deleted.
func (p *publisher) enqueueAll() {
	for _, node := range p.ledger.Nodes() {
		p.enqueue(pv.NodeLabelValue(node))
	}
	for _, group := range p.groups {
		p.enqueue(groupKey + group.Name)
	}
}

// nodeName returns the name of the node with a label; false if it is unknown.
func (p *publisher) nodeName(label string) (string, bool) {
	if pv.IsNodeName(label) {
		return label, true
	}
	name, _, reported := p.ledger.NodeOf(label)
	return name, reported
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer p.queue.ShutDown()
	p.enqueueAll() // including the groups, for which there is no watch
	for range publishers {
		all.Go(func() {
			for p.next(ctx) {
			}
		})
	}
	<-ctx.Done()
}

func (p *publisher) next(ctx context.Context) bool {
	label, ended := p.queue.Get()
	if ended {
		return false
	}
	defer p.queue.Done(label)
	unconfirmed, err := p.confirm(ctx, label), p.publish(ctx, label)
	if err != nil || unconfirmed != nil {
		log := klog.FromContext(ctx).WithValues("node", label)
		first := ctx.Err() == nil && p.queue.NumRequeues(label) == 0
		if first && unconfirmed != nil {
			log.Error(unconfirmed, "The report of a node could not be read; it is retried, and less is offered there meanwhile")
		}
		if first && err != nil && !apierrors.IsConflict(err) {
			log.Error(err, "The capacity of a node could not be published; it is retried")
		}
		p.queue.AddRateLimited(label)
		return true
	}
	p.queue.Forget(label)
	if at := p.ledger.ExpireReservations(label); !at.IsZero() {
		p.queue.AddAfter(label, max(time.Until(at), 0)+publishDelay)
	}
	return true
}

// confirm reads the report of a node, if the ledger needs to know that its own is current. One read
// covers all departures from the node before it.
func (p *publisher) confirm(ctx context.Context, label string) error {
	node, at, ask := p.ledger.Unconfirmed(label)
	if !ask {
		return nil
	}
	report, err := p.report(ctx, node)
	switch {
	case apierrors.IsNotFound(err) && p.ledger.Absent(label, at):
		return nil
	case err != nil:
		return fmt.Errorf("what has gone from node %s stays charged: %w", node, err)
	}
	p.ledger.Confirm(report, at)
	return nil
}

// publish writes the changed capacities of one node. It may be killed at any instant: the next call
// writes the rest.
func (p *publisher) publish(ctx context.Context, label string) error {
	wanted, by, of := p.wanted, pv.LabelNode, label
	if group, is := strings.CutPrefix(label, groupKey); is {
		wanted, by, of = p.templates, pv.LabelNodeGroup, group
	}
	want, err := wanted(of)
	if err != nil {
		return err
	}
	have, err := p.capacities.List(labels.SelectorFromSet(labels.Set{by: of, labelManaged: managedBy}))
	if err != nil {
		return err
	}
	api := p.client.StorageV1().CSIStorageCapacities(p.namespace)
	todo := capacityChange(want, have)
	for _, c := range todo.create {
		_, err := api.Create(ctx, c, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue // the cache does not have it yet
		}
		if err != nil {
			return fmt.Errorf("create capacity %s: %w", describeCapacity(c), err)
		}
		p.metrics.published()
	}
	for _, c := range todo.update {
		if _, err := api.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update capacity %s: %w", describeCapacity(c), err)
		}
		p.metrics.published()
	}
	for _, c := range todo.remove {
		err := api.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
		if apierrors.IsNotFound(err) {
			continue // the cache still has it
		}
		if err != nil {
			return fmt.Errorf("delete capacity %s: %w", describeCapacity(c), err)
		}
		p.metrics.published()
	}
	return nil
}

// wanted returns the capacities that a node should have: none if it has not reported, or has no
// hostname label by which the scheduler could match it.
func (p *publisher) wanted(label string) ([]*storagev1.CSIStorageCapacity, error) {
	name, report, reported := p.ledger.NodeOf(label)
	if !reported {
		return nil, nil
	}
	node, err := p.listers.Nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	of := offeringNode{name: name, hostname: hostnameLabel(node), report: types.UID(report)}
	if of.hostname == "" {
		return nil, nil
	}
	classes, err := p.listers.Classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var out []*storagev1.CSIStorageCapacity
	for _, class := range classes {
		parameters, ours := offers(class, p.door)
		if !ours {
			continue
		}
		if offer, has := p.ledger.Offer(name, parameters.Spec); has {
			if !p.avoidBusy {
				offer.Busy = 0
			}
			out = append(out, capacityOf(p.namespace, of, class, offer.MaxVolumeSize, offer.Busy))
		}
	}
	slices.SortFunc(out, func(a, b *storagev1.CSIStorageCapacity) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}
