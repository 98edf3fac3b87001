package dataset

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// replicaClaim returns the claim of a replica. node is the node that the replica is for; empty for any node.
func replicaClaim(owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, s Source, index int, node string) *corev1.PersistentVolumeClaim {
	m := metaOf(owner, v, replicaName(owner.Name, v.ID, index))
	m.Labels[labelReplica] = strconv.Itoa(index)
	m.Annotations[replica.AnnotationEviction] = string(s.Eviction)
	m.Annotations[annotationLoad] = s.Load(index)
	m.Annotations[annotationAffinity] = affinityDigest(v.NodeAffinity)
	if node != "" {
		m.Annotations[annotationNode] = node
	}
	if s.Writable() {
		m.Annotations[replica.AnnotationWritable] = replica.Writable
	}
	if s.Mirror {
		m.Annotations[annotationResync] = resyncUpload
		m.Finalizers = []string{finalizerMirror}
	}
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &s.Class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        storageRequest(s.Capacity),
		},
	}
}

func storageRequest(q resource.Quantity) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: q}}
}

// readersClaim returns the one claim of all consumers.
func readersClaim(owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, s Source) *corev1.PersistentVolumeClaim {
	m, none := metaOf(owner, v, replica.ReadersClaim(owner.Name, v.ID)), ""
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none,
			VolumeName:       replica.ReadersPV(hash(owner, v.ID)),
			AccessModes:      readersModes(v, s),
			Resources:        storageRequest(s.Capacity),
		},
	}
}

func readersModes(v flexlvmv1.VolumeConfig, s Source) []corev1.PersistentVolumeAccessMode {
	if s.NFS != nil {
		return []corev1.PersistentVolumeAccessMode{v.AccessMode}
	}
	return []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
}

// readersVolume returns the PersistentVolume of readersClaim. It is tied to no single node: pods go to the
// nodes that carry the dataset's label at that moment.
func readersVolume(owner *flexlvmv1.VolumeManager, v flexlvmv1.VolumeConfig, offer Offer, cluster string) *corev1.PersistentVolume {
	s := offer.Source
	mode := corev1.PersistentVolumeFilesystem
	m := metaOf(owner, v, replica.ReadersPV(hash(owner, v.ID)))
	m.Namespace, m.OwnerReferences = "", nil // with an owner in a namespace it would be garbage-collected
	// The labels do not include v.Labels: users may choose labels of objects in their namespace, not of
	// cluster-scoped objects.
	m.Labels = map[string]string{replica.LabelOwner: string(owner.UID), replica.LabelDataset: hash(owner, v.ID)}
	m.Annotations[replica.AnnotationOwner] = owner.Name
	if offer.Hash != hash(owner, v.ID) { // also for another dataset of the same namespace
		m.Labels[replica.LabelShared] = offer.Hash
	}
	out := &corev1.PersistentVolume{
		ObjectMeta: m,
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   readersModes(v, s),
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: s.Capacity},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			VolumeMode:                    &mode,
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: owner.Namespace, Name: replica.ReadersClaim(owner.Name, v.ID),
			},
		},
	}
	if s.NFS != nil {
		out.Spec.NFS = s.NFS
		return out
	}
	out.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{labelExists(replica.NodeLabel(offer.Hash))}}},
	}}
	options := readersOptions(offer.Hash, s, offer.Class, cluster)
	if offer.Namespace != owner.Namespace {
		options[volume.OptionOwner] = offer.Namespace
	}
	out.Spec.PersistentVolumeSource = persistentvolume.ReadersSource(offer.Door, options, owner.Namespace)
	return out
}

// readersOptions returns the options of the replicas' own volumes, as set by their StorageClass, without the
// file system, which is the same for all datasets.
func readersOptions(hash string, s Source, class map[string]string, cluster string) map[string]string {
	out := map[string]string{
		volume.OptionGroup:    string(volume.DefaultGroup),
		volume.OptionSize:     strconv.FormatInt(s.Capacity.Value(), 10),
		volume.OptionKind:     string(volume.Dataset),
		volume.OptionVolume:   string(replica.VolumeName(hash)),
		volume.OptionCluster:  cluster,
		volume.OptionReadOnly: "true",
		volume.OptionVersions: "true",
	}
	for _, o := range volume.Options() {
		if value, given := class[o.Name]; given && o.Class && o.Name != volume.OptionKind && o.Name != volume.OptionFSType {
			out[o.Name] = value
		}
	}
	return out
}

func labelExists(label string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpExists}
}

// labelDoesNotExist requires that a node not have the label: a loader needs a node without the dataset.
func labelDoesNotExist(label string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: label, Operator: corev1.NodeSelectorOpDoesNotExist}
}

// requiredAffinity returns a node affinity with one required term.
func requiredAffinity(required corev1.NodeSelectorRequirement) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{required}}},
	}}
}

// preconditions require that an object is still the one that was observed, unchanged.
func preconditions(m metav1.Object) *metav1.Preconditions {
	uid, version := m.GetUID(), m.GetResourceVersion()
	return &metav1.Preconditions{UID: &uid, ResourceVersion: &version}
}
