package provision

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// localParameters are the parameters of its class that a LocalVolume may override; api/v1 has the same
// list. None of them concerns Secrets of others, or what happens to the data.
var localParameters = []string{
	volume.OptionFSType, volume.OptionInodes, volume.OptionLayout, volume.OptionMirrors, volume.OptionStripes, volume.OptionStripeKiB,
}

// claimOf returns the name of the claim that a LocalVolume is reserved for.
func claimOf(o *flexlvmv1.LocalVolume) string {
	if o.Spec.ClaimName != "" {
		return o.Spec.ClaimName
	}
	return o.Name
}

// reserve reserves room for a LocalVolume, as for a claim with a selected node, and returns its
// PersistentVolume, or why there is none.
func (l *localVolumes) reserve(o *flexlvmv1.LocalVolume) (*corev1.PersistentVolume, readyCondition) {
	asked, err := l.check(o)
	if err != nil {
		return nil, conditionFor(err)
	}
	uuids, err := l.provisioner.Ledger.Reserve(asked.on.Name, []ledger.Want{asked.want()})
	if err != nil {
		return nil, conditionFor(withoutFigures(err, asked.spec))
	}
	asked.spec.GroupUUID = uuids[asked.spec.Pool()]
	object := asked.PersistentVolume(asked.spec, asked.parameters, asked.on)
	object.Annotations[pv.AnnotationProvisionedBy] = pv.Provisioner
	object.Annotations[pv.AnnotationDeclared] = o.Namespace + "/" + o.Name
	object.Spec.StorageClassName = asked.Class.Name
	object.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: o.Namespace, Name: asked.Claim.Name}
	return object, readyCondition{}
}

// refusal returns why reserve would reserve nothing, judging by the caches; it reserves nothing itself.
func (l *localVolumes) refusal(o *flexlvmv1.LocalVolume) readyCondition {
	asked, err := l.check(o)
	if err == nil {
		err = withoutFigures(l.provisioner.Ledger.Fits(asked.on.Name, asked.want()), asked.spec)
	}
	return conditionFor(err)
}

// conditionFor returns the condition that reports err; the zero readyCondition without an error.
func conditionFor(err error) readyCondition {
	var full *ledger.NoRoomError
	switch {
	case err == nil:
		return readyCondition{}
	case errors.As(err, &full):
		return readyCondition{reason: flexlvmv1.LocalVolumeNoRoom, message: fmt.Sprintf("node %s %s; it is retried", full.Node, full.Why)}
	}
	return readyCondition{reason: flexlvmv1.LocalVolumeRefused, message: err.Error()}
}

// A localRequest is a valid Request with everything that is needed to reserve its room.
type localRequest struct {
	Request
	spec       volume.Spec
	parameters Parameters
	on         Node
}

func (r localRequest) want() ledger.Want {
	return ledger.Want{PV: r.PVName, Claim: r.Claim.Name, Spec: r.spec}
}

// check parses and checks a LocalVolume.
func (l *localVolumes) check(o *flexlvmv1.LocalVolume) (localRequest, error) {
	p := l.provisioner
	request, err := l.request(o)
	if err != nil {
		return localRequest{}, err
	}
	spec, parameters, err := request.Check()
	if err != nil {
		return localRequest{}, p.countRefusal(err)
	}
	if spec.Layout == volume.Directory {
		return localRequest{}, fmt.Errorf("spec.storageClassName: StorageClass %q has layout %q, whose volumes are made by their first mount; let a claim ask for one", request.Class.Name, volume.Directory)
	}
	node, err := p.Listers.Nodes.Get(o.Spec.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return localRequest{}, fmt.Errorf("spec.nodeName: the cluster has no node %q; it is retried", o.Spec.NodeName)
	case err != nil:
		return localRequest{}, err
	case !allowed(request.Class, node):
		return localRequest{}, fmt.Errorf("spec.nodeName: allowedTopologies of StorageClass %q do not allow node %q; name another", request.Class.Name, node.Name)
	}
	on, _, err := p.node(request.Class, node.Name)
	return localRequest{request, spec, parameters, on}, err
}

// withoutFigures returns an error whose text stays the same while a node is short of room, regardless
// of how much is free: every change of a LocalVolume's status is sent to its watchers.
func withoutFigures(err error, spec volume.Spec) error {
	var full *ledger.NoRoomError
	if errors.As(err, &full) && full.Short {
		return &ledger.NoRoomError{Node: full.Node, Short: true, Why: fmt.Sprintf("has no room for %s in %s %q (`kubectl flexlvm status` shows how much is free)", spec.Size, spec.Pool().Noun(), spec.Pool())}
	}
	return err
}

// request returns the request that an equivalent claim would make.
func (l *localVolumes) request(o *flexlvmv1.LocalVolume) (Request, error) {
	class, err := l.provisioner.Listers.Classes.Get(o.Spec.StorageClassName)
	switch {
	case apierrors.IsNotFound(err):
		return Request{}, fmt.Errorf("spec.storageClassName: there is no StorageClass %q; create it, or name another in a new LocalVolume", o.Spec.StorageClassName)
	case err != nil:
		return Request{}, err
	case class.Provisioner != pv.Provisioner:
		return Request{}, fmt.Errorf("spec.storageClassName: the provisioner of StorageClass %q is %q, and not %q; name a class of flexlvm's", class.Name, class.Provisioner, pv.Provisioner)
	}
	unmodifiedClass := class
	class = class.DeepCopy()
	for _, key := range slices.Sorted(maps.Keys(o.Spec.Parameters)) {
		if !slices.Contains(localParameters, key) {
			return Request{}, fmt.Errorf("spec.parameters: %q cannot be set by a LocalVolume, which may set only %v; set it in the StorageClass", key, localParameters)
		}
		if key == volume.OptionLayout && o.Spec.Parameters[key] == string(volume.Directory) {
			return Request{}, fmt.Errorf("spec.parameters: volumes of layout %q are made by their first mount; let a claim ask for one", volume.Directory)
		}
		if class.Parameters == nil {
			class.Parameters = map[string]string{}
		}
		class.Parameters[key] = o.Spec.Parameters[key]
	}
	size, err := resource.ParseQuantity(string(o.Spec.Size))
	if err != nil {
		return Request{}, fmt.Errorf("spec.size %q: is no quantity; give it as 10Gi", o.Spec.Size)
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: claimOf(o)},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: o.Spec.AccessModes, StorageClassName: &class.Name,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	if mode := o.Spec.VolumeMode; mode != "" {
		claim.Spec.VolumeMode = &mode
	}
	return Request{PVName: localPrefix + string(o.UID), Claim: claim, Class: class, Cluster: l.provisioner.Cluster, Door: l.provisioner.Door, unmodifiedClass: unmodifiedClass}, nil
}

// sizeField returns the name of the field with the size.
func (r Request) sizeField() string {
	if r.unmodifiedClass != nil {
		return "spec.size"
	}
	return "spec.resources.requests.storage"
}

// isLocal reports whether the LocalVolume overrides a parameter of its class.
func (r Request) isLocal(parameter string) bool {
	return r.unmodifiedClass != nil && r.Class.Parameters[parameter] != r.unmodifiedClass.Parameters[parameter]
}

// wrongParameters returns the problem, and which object to create again to correct the parameters.
func (r Request) wrongParameters(err error) string {
	if r.unmodifiedClass != nil {
		_, alone := ParseParameters(r.unmodifiedClass.Parameters)
		if alone == nil {
			return fmt.Sprintf("spec.parameters: %s; make another LocalVolume", err)
		}
		err = alone
	}
	return fmt.Sprintf("StorageClass %q: %s; a class cannot be changed, create it again", r.Class.Name, err)
}

// setReady sets the condition and the name of the PersistentVolume, and reports whether anything has
// changed.
func setReady(s *flexlvmv1.LocalVolumeStatus, volume string, c metav1.Condition) bool {
	was := s.DeepCopy()
	if volume != "" {
		s.PersistentVolumeName = volume
	}
	meta.SetStatusCondition(&s.Conditions, c)
	return !equality.Semantic.DeepEqual(was, s)
}
