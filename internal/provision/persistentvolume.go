package provision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/kubeobject"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// A Request holds the input from which a PersistentVolume is built.
type Request struct {
	PVName  string
	Claim   *corev1.PersistentVolumeClaim
	Class   *storagev1.StorageClass
	Cluster string // UID of the kube-system namespace
	// Door is the door of classes that name none; empty: Flex.
	Door pv.Door
	// unmodifiedClass is Class without the overrides of a LocalVolume; nil for a claim.
	unmodifiedClass *storagev1.StorageClass
}

// door returns the door of the volume.
func (r Request) door() pv.Door { return pv.ClassDoor(r.Class.Parameters, r.Door) }

// A Node holds the facts about a node that its PersistentVolumes need.
type Node struct {
	Name     string
	Hostname string // the value of its label kubernetes.io/hostname
}

// Check converts a claim and its class into the volume's spec. The error is a *controlplane.Refusal
// that names every problem.
func (r Request) Check() (volume.Spec, Parameters, error) {
	var wrong controlplane.Problems
	checkClaim(r.Claim, r.door(), &wrong)
	_, err := mountOptions(r.Class, r.door())
	wrong.Check(err)
	size, err := claimSize(r.Claim, r.sizeField())
	wrong.Check(err)
	parameters, err := ParseParameters(r.Class.Parameters)
	if err != nil {
		wrong.Add(r.wrongParameters(err))
	} else {
		r.checkCloning(parameters, &wrong)
		r.checkReplica(parameters, &wrong)
		r.checkSecrets(parameters, &wrong)
		r.checkBlock(parameters, &wrong)
	}
	name, err := volume.ParseName("the name of the PersistentVolume", r.PVName)
	wrong.Check(err)
	if err := wrong.Refusal(); err != nil {
		return volume.Spec{}, Parameters{}, err
	}
	spec := parameters.Spec
	spec.Name, spec.Size = name, size
	if kubeobject.IsBlock(r.Claim.Spec.VolumeMode) {
		spec.FSType = volume.Raw
	}
	if hash, is := r.dataset(); is {
		spec.Name = replica.VolumeName(hash)
	}
	spec.Cluster, spec.Namespace = r.Cluster, r.Claim.Namespace
	wrong.Check(spec.Validate())
	return spec, parameters, wrong.Refusal()
}

// PersistentVolume returns the PersistentVolume on node for a request that has passed Check.
func (r Request) PersistentVolume(spec volume.Spec, parameters Parameters, node Node) *corev1.PersistentVolume {
	policy := corev1.PersistentVolumeReclaimDelete
	if r.Class.ReclaimPolicy != nil {
		policy = *r.Class.ReclaimPolicy
	}
	options, _ := mountOptions(r.Class, r.door()) // Check has reported their errors
	object := persistentvolume.New(pv.Description{
		Name: r.PVName, Node: node.Name, Hostname: node.Hostname, Door: r.door(), Spec: spec, Charged: spec.Charge(), MountOptions: options,
		Disposal: volume.Disposal{Reclaim: parameters.Reclaim, Wipe: parameters.Wipe}, OnNodeLoss: parameters.OnNodeLoss, IOLimits: parameters.IOLimits, Trim: parameters.Trim,
		Secrets: r.secrets(parameters),
	}, accessModes(r.Claim.Spec.AccessModes), policy)
	if name := attributesClass(r.Claim); name != "" {
		object.Spec.VolumeAttributesClassName = &name // otherwise Kubernetes would not bind the two
	}
	r.asReplica(object)
	return object
}

// accessModes returns the claim's access modes without duplicates, or the default.
func accessModes(asked []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	var out []corev1.PersistentVolumeAccessMode
	for _, mode := range asked {
		if !slices.Contains(out, mode) {
			out = append(out, mode)
		}
	}
	if len(out) == 0 {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return out
}
