package provision

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A dataSource is the source of a claim's initial content; the zero value means none.
type dataSource struct {
	group     string
	kind      string
	name      string
	namespace string // empty: the claim's own
}

// sourceOf reads both fields: the API server keeps them equal where possible, and dataSourceRef can
// hold more.
func sourceOf(spec corev1.PersistentVolumeClaimSpec) dataSource {
	switch {
	case spec.DataSourceRef != nil:
		r := spec.DataSourceRef
		return dataSource{group: deref(r.APIGroup), kind: r.Kind, name: r.Name, namespace: deref(r.Namespace)}
	case spec.DataSource != nil:
		r := spec.DataSource
		return dataSource{group: deref(r.APIGroup), kind: r.Kind, name: r.Name}
	}
	return dataSource{}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// checkSource rejects unsupported data sources.
func checkSource(claim *corev1.PersistentVolumeClaim, wrong *controlplane.Problems) {
	s := sourceOf(claim.Spec)
	switch {
	case s == dataSource{}:
	case len(validation.IsDNS1123Subdomain(s.name)) > 0: // the API server accepts any string
		wrong.Add(fmt.Sprintf("dataSource %q: is no name that an object can have; name a claim or a VolumeSnapshot of this namespace", s.name))
	case s.isSnapshot():
		if s.namespace != "" && s.namespace != claim.Namespace {
			wrong.Add(fmt.Sprintf("dataSourceRef.namespace %q: is not the claim's own; only a snapshot of namespace %q can be restored", s.namespace, claim.Namespace))
		}
	case s.group != "" || s.kind != "PersistentVolumeClaim":
		wrong.Add(fmt.Sprintf("the data source %s %q is not supported: flexlvm makes empty volumes, and copies of PersistentVolumeClaims and VolumeSnapshots; leave dataSource and dataSourceRef out", s.kind, s.name))
	case s.namespace != "" && s.namespace != claim.Namespace:
		wrong.Add(fmt.Sprintf("dataSourceRef.namespace %q: is not the claim's own; only a claim of namespace %q can be copied", s.namespace, claim.Namespace))
	case s.name == claim.Name:
		wrong.Add(fmt.Sprintf("dataSource %q: is the claim itself; name the claim that it is to be a copy of", s.name))
	}
}

// checkCloning rejects copies that the layout does not support.
func (r Request) checkCloning(p Parameters, wrong *controlplane.Problems) {
	s := sourceOf(r.Claim.Spec)
	switch {
	case s.kind == "":
	case p.Layout == volume.Directory:
		wrong.Add(fmt.Sprintf("dataSource %q: StorageClass %q has layout %q, whose volumes begin empty; leave it out, and copy the files", s.name, r.Class.Name, volume.Directory))
	case p.Layout != volume.Thin && !s.isSnapshot():
		wrong.Add(fmt.Sprintf("dataSource %q: cloning a claim needs layout %q, and StorageClass %q has %q; take a VolumeSnapshot of that claim, which needs the CSI driver, and name it", s.name, volume.Thin, r.Class.Name, p.Layout))
	}
}

// clones reports whether the claim starts as a copy of a volume. Check must have passed.
func (r Request) clones() bool { return sourceOf(r.Claim.Spec).kind != "" }

// An origin is the volume that a claim starts as a copy of.
type origin struct {
	what      string // the claim or the snapshot, for messages
	volume    volume.Name
	groupUUID string // of the volume group that it was created in; empty: any group of that name
	node      string // its node, which must also be the copy's
}

// origin returns the volume that a claim starts as a copy of. A *Refusal means that this is impossible;
// any other error may be transient.
func (p *Provisioner) origin(ctx context.Context, request Request, spec volume.Spec) (origin, error) {
	source := sourceOf(request.Claim.Spec)
	if source.isSnapshot() {
		return p.snapshotOrigin(ctx, request, spec, source.name)
	}
	name := source.name
	wait := func(format string, args ...any) (origin, error) {
		return origin{}, waiting(name, format, args...)
	}
	from, err := p.Listers.Live.Claim(ctx, request.Claim.Namespace, name)
	switch {
	case apierrors.IsNotFound(err):
		return wait("namespace %q has no such claim; create it", request.Claim.Namespace)
	case err != nil:
		return origin{}, err
	case from.DeletionTimestamp != nil:
		return wait("that claim is being deleted; name another")
	case from.Spec.VolumeName == "" || from.Status.Phase != corev1.ClaimBound:
		return wait("that claim is not bound to a volume yet; start a pod that uses it")
	}
	object, err := p.Listers.Volumes.Get(from.Spec.VolumeName)
	if err != nil {
		return wait("its PersistentVolume cannot be looked up: %s", err)
	}
	if err := ofClaim(object, name); err != nil {
		return origin{}, err
	}
	c, err := persistentvolume.Parse(object)
	switch {
	case err != nil:
		return wait("%s", err)
	case c.Deleting || !c.Usable() || object.Spec.ClaimRef == nil || object.Spec.ClaimRef.UID != from.UID:
		return wait("PersistentVolume %q is not bound to that claim, or is being deleted", object.Name)
	}
	if err := p.checkCopyable(request, spec, name, &c); err != nil {
		return origin{}, err
	}
	return p.originOn(object, &c, name, fmt.Sprintf("claim %q", name))
}

// originOn returns the volume of a PersistentVolume as an origin on its node.
func (p *Provisioner) originOn(object *corev1.PersistentVolume, c *persistentvolume.Volume, name, what string) (origin, error) {
	node, _, reported := p.Ledger.NodeOf(object.Labels[pv.LabelNode])
	if !reported {
		return origin{}, waiting(name, "its node %q has not reported; check `kubectl get nodestorages` and the pod of DaemonSet flexlvm-gc there", hostnameOf(object))
	}
	return origin{what: what, volume: c.Volume, groupUUID: c.GroupUUID, node: node}, nil
}

// checkGroup returns an error if the origin's node has another volume group than the one that the origin was created in,
// as after the node was replaced under the same name. uuids are the UUIDs of the groups of the node's pools.
func (o origin) checkGroup(in volume.PoolName, uuids map[volume.PoolName]string) error {
	if uuid, reported := uuids[in]; !reported || o.groupUUID == "" || o.groupUUID == uuid {
		return nil
	}
	return fmt.Errorf("volume group %s there is another one than it was made in; unless the former disks come back, it is lost", in.Group())
}

// notThere returns the error for a copy that cannot be on its origin's node.
func (o origin) notThere(request Request, why error) error {
	return fmt.Errorf("dataSource %q is on node %q, and a copy is on the node of its source: %w", sourceOf(request.Claim.Spec).name, o.node, why)
}

// waiting returns the error for a copy that cannot be created yet.
func waiting(name, format string, args ...any) error {
	return fmt.Errorf("dataSource %q: %s; the copy is retried", name, fmt.Sprintf(format, args...))
}

// ofClaim rejects volumes that are not flexlvm's, and replicas of datasets.
func ofClaim(object *corev1.PersistentVolume, name string) error {
	var wrong controlplane.Problems
	switch {
	case !persistentvolume.IsOurs(object):
		wrong.Add(fmt.Sprintf("dataSource %q: its volume is not one of flexlvm, so it cannot be copied; name a claim of a flexlvm class", name))
	case persistentvolume.Options(object)[volume.OptionKind] == string(volume.Dataset):
		wrong.Add(fmt.Sprintf("dataSource %q: its volume is a replica of a dataset; make the copy by a dataset of its own", name))
	}
	return wrong.Refusal()
}

// checkCopyable rejects copies that the current claims and class make impossible.
func (p *Provisioner) checkCopyable(request Request, spec volume.Spec, name string, c *persistentvolume.Volume) error {
	var wrong controlplane.Problems
	switch {
	case c.Cluster != p.Cluster:
		wrong.Add(fmt.Sprintf("dataSource %q: its volume was created for cluster %q, and this is %q", name, c.Cluster, p.Cluster))
	case c.CopyOnWrite():
		if why := copyInFull(request, spec, name, c); why != "" {
			wrong.Add(why)
		}
	case c.Shape.Layout != volume.Thin:
		wrong.Add(fmt.Sprintf("dataSource %q: its volume has layout %q, and only those of layout %q can be copied; take a VolumeSnapshot of that claim, which needs the CSI driver, and name it in a claim of a class like that of the source", name, c.Shape.Layout, volume.Thin))
	case c.Pool() != spec.Pool():
		wrong.Add(fmt.Sprintf("dataSource %q: its volume is in thin pool %q, and StorageClass %q is of %q; a copy is in the pool of its source, so use a class of that pool", name, c.Pool(), request.Class.Name, spec.Pool()))
	}
	switch {
	case c.Encrypted != spec.Encrypted:
		wrong.Add(fmt.Sprintf("dataSource %q: its volume and its copy must both be encrypted, or neither; use a class like that of the source in place of StorageClass %q", name, request.Class.Name))
	case c.FSType.VolumeMode() != spec.FSType.VolumeMode():
		wrong.Add(fmt.Sprintf("dataSource %q: its volume has volumeMode %s, and the claim %s; a copy holds what its source does, so let both be the same", name, c.FSType.VolumeMode(), spec.FSType.VolumeMode()))
	case c.FSType != spec.FSType:
		wrong.Add(fmt.Sprintf("dataSource %q: its volume was made with %s, and StorageClass %q makes %s; a copy holds what its source does, so use a class with that %s", name, c.FSType, request.Class.Name, spec.FSType, volume.OptionFSType))
	case c.Size > spec.Size:
		wrong.Add(fmt.Sprintf("spec.resources.requests.storage: %s are asked for and dataSource %q has %s; a copy is as large as its source or larger", ledger.AmountOf(spec.Size), name, ledger.AmountOf(c.Size)))
	case c.ContentSize() > spec.DeviceSize(): // a copy has its source's device size, but is charged by its own spec
		wrong.Add(fmt.Sprintf("dataSource %q: its volume takes %s, more than one of StorageClass %q and this size does; use a class with the %s of the source, or ask for more", name, ledger.AmountOf(c.ContentSize()), request.Class.Name, volume.OptionInodes))
	}
	return wrong.Refusal()
}

// copyInFull returns why no claim of the class can start as a full copy of a copy-on-write snapshot, or
// "".
func copyInFull(request Request, spec volume.Spec, name string, c *persistentvolume.Volume) string {
	switch {
	case spec.Layout == volume.Thin:
		return fmt.Sprintf("dataSource %q: its snapshot is of a volume that is not thin, and StorageClass %q has layout %q; use a class with another layout", name, request.Class.Name, volume.Thin)
	case c.Group != spec.Group:
		return fmt.Sprintf("dataSource %q: its snapshot is in volume group %q, and StorageClass %q is of %q; use a class of that group", name, c.Group, request.Class.Name, spec.Group)
	}
	return ""
}

// provisionCopy serves a claim that starts as a copy of another volume, on that volume's node. If the
// scheduler has chosen another node, it moves the pod once it sees the copy; until then, the pod's
// other claims without a volume are returned to the scheduler (see OtherNodeError).
func (p *Provisioner) provisionCopy(ctx context.Context, request Request, spec volume.Spec, nodeSelected bool) (volume.Spec, Node, state, error) {
	from, err := p.origin(ctx, request, spec)
	if err != nil {
		return spec, Node{}, finished, err
	}
	on := func(err error) error { return from.notThere(request, err) }
	spec.CloneOf = from.volume
	node, _, err := p.node(request.Class, from.node)
	if err != nil {
		return spec, Node{}, finished, on(err)
	}
	if err := from.checkGroup(spec.Pool(), p.Ledger.GroupUUIDs(from.node)); err != nil {
		return spec, Node{}, finished, on(err) // before room is reserved, which each retry would renew
	}
	sets, failed := []podVolumes{{wants: []ledger.Want{{PV: request.PVName, Claim: request.Claim.Name, Spec: spec}}}}, finished
	if nodeSelected {
		if sets, err = p.podVolumeSets(ctx, request, spec, from.node); err != nil {
			return spec, Node{}, stateFor(err), err
		}
		failed = reschedule
	}
	uuids, err := p.reserveOne(from.node, sets)
	if err != nil {
		return spec, Node{}, failed, on(err)
	}
	spec.GroupUUID = uuids[spec.Pool()]
	if err := from.checkGroup(spec.Pool(), uuids); err != nil {
		return spec, Node{}, finished, on(err)
	}
	return spec, node, finished, nil
}

// OtherNodeError is the error for a claim that is intended for one node while another claim of its pod
// is, or has to be, on a different node.
type OtherNodeError struct {
	Claim    string // the other claim
	Why      string
	Node     string // the other claim's node
	Intended string // the node that this claim is intended for
}

func (e *OtherNodeError) Error() string {
	return fmt.Sprintf("claim %q %s on node %q and this one was to be on node %q; the scheduler is asked again, and follows once that claim is bound", e.Claim, e.Why, e.Node, e.Intended)
}

// checkBoundNode fails if the volume of a pod's other claim is not on the node that the rest is
// intended for, with an *OtherNodeError, or if the cache does not have its PersistentVolume: it may be behind
// that of the claims. A claim whose PersistentVolume is gone is Lost, and its pod cannot start anyway.
func (p *Provisioner) checkBoundNode(other *corev1.PersistentVolumeClaim, node string) error {
	object, err := p.Listers.Volumes.Get(other.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("PersistentVolume %q of claim %q is not seen yet, so its node is unknown; the claim is retried", other.Spec.VolumeName, other.Name)
	case err != nil:
		return err
	case object.Labels[pv.LabelNode] == "" || object.Labels[pv.LabelNode] == pv.NodeLabelValue(node):
		return nil
	}
	return &OtherNodeError{Claim: other.Name, Why: "has its volume", Node: hostnameOf(object), Intended: node}
}

// setOrigin sets the origin of a pod's other claim in spec. It fails with an *OtherNodeError if the
// origin is not on the node that the rest is intended for.
func (p *Provisioner) setOrigin(ctx context.Context, request Request, spec *volume.Spec, node string) error {
	from, err := p.origin(ctx, request, *spec)
	if err != nil {
		return err
	}
	if err := from.checkGroup(spec.Pool(), p.Ledger.GroupUUIDs(from.node)); err != nil {
		return from.notThere(request, err) // the scheduler is not asked again, because no node will do
	}
	spec.CloneOf = from.volume
	if from.node != node {
		return &OtherNodeError{Claim: request.Claim.Name, Why: fmt.Sprintf("is to be a copy of %s, which is", from.what), Node: from.node, Intended: node}
	}
	return nil
}

// stateFor returns the state of a claim that other claims of its pod block.
func stateFor(err error) state {
	if other := (*OtherNodeError)(nil); errors.As(err, &other) {
		return reschedule
	}
	return unchanged
}

// claimNow returns a function that reads a claim from the API server: a claim that was just deleted
// must not be copied, because its volume may be removed.
func claimNow(client kubernetes.Interface) func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return func(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
		list, err := client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
		if err != nil {
			return nil, fmt.Errorf("look up claim %s/%s: %w", namespace, name, err)
		}
		for i := range list.Items {
			if list.Items[i].Name == name {
				return &list.Items[i], nil
			}
		}
		return nil, apierrors.NewNotFound(corev1.Resource("persistentvolumeclaims"), name)
	}
}
