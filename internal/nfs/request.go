package nfs

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/volume"
)

const (
	// Name is the provisioner's name in StorageClasses, and in the Lease and the events of this control
	// side.
	Name = "nfs.flexlvm.io"
	// AnnotationOnDelete holds an OnDelete on a PersistentVolume: the class may have been deleted
	// before the volume is.
	AnnotationOnDelete = "nfs.flexlvm.io/on-delete"
	// AnnotationEnforceSize is "true" on a PersistentVolume whose directory's size the server enforced
	// when it was created. It is for people; the mark in the export holds the size.
	AnnotationEnforceSize = "nfs.flexlvm.io/enforce-size"
)

// A request is a valid claim with the parameters to serve it.
type request struct {
	Parameters
	place  place
	claim  *corev1.PersistentVolumeClaim
	policy corev1.PersistentVolumeReclaimPolicy
	mounts []string
}

// read checks a claim and its class. The error is a *controlplane.Refusal that names every problem.
func (all Exports) read(volumeName string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (request, error) {
	wrong := claimProblems(claim)
	name, err := DirectoryName(claim.Namespace, claim.Name, volumeName)
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	parameters, err := all.parseParameters(class.Parameters)
	if err != nil {
		wrong = append(wrong, fmt.Sprintf("StorageClass %q: %s; a class cannot be changed, create it again", class.Name, err))
	}
	if option := oddOption(class.MountOptions); option != "" {
		wrong = append(wrong, fmt.Sprintf("mountOptions of StorageClass %q: %q is no plain option of NFS; create the class again without it", class.Name, option))
	}
	size := volume.Bytes(claim.Spec.Resources.Requests.Storage().Value())
	if parameters.EnforceSize && size < volume.MinDirectory {
		wrong = append(wrong, fmt.Sprintf("spec.resources.requests.storage is %s; with %s ask for %s or more: XFS makes no file in less", size, parameterEnforce, volume.MinDirectory))
	}
	if len(wrong) > 0 {
		return request{}, &controlplane.Refusal{Problems: wrong}
	}
	r := request{
		Parameters: parameters, claim: claim, mounts: slices.Clone(class.MountOptions),
		place:  place{export: parameters.Export, name: name, volume: volumeName},
		policy: corev1.PersistentVolumeReclaimDelete,
	}
	if parameters.EnforceSize {
		r.place.size = size
	}
	if class.ReclaimPolicy != nil {
		r.policy = *class.ReclaimPolicy
	}
	return r, nil
}

var (
	plainOption = regexp.MustCompile(`^_?[a-z][a-z0-9_]*(=[0-9A-Za-z:._%-]*)?$`)
	// With these options, mount(8) mounts a path of the node, or does something else.
	oddOptions = []string{"bind", "rbind", "move", "remount", "loop", "offset", "sizelimit", "helper", "uhelper"}
)

// oddOption returns an option that the policy nfs-provisioner.flexlvm.io refuses, or "".
func oddOption(options []string) string {
	for _, o := range options {
		for word := range strings.SplitSeq(o, ",") {
			name, _, _ := strings.Cut(word, "=")
			if !plainOption.MatchString(word) || slices.Contains(oddOptions, name) {
				return word
			}
		}
	}
	return ""
}

// claimProblems returns the features of a claim that a directory on a server cannot provide.
func claimProblems(claim *corev1.PersistentVolumeClaim) (wrong []string) {
	spec := claim.Spec
	if spec.VolumeMode != nil && *spec.VolumeMode != corev1.PersistentVolumeFilesystem {
		wrong = append(wrong, fmt.Sprintf("volumeMode %s is not supported: NFS has directories; use volumeMode Filesystem", *spec.VolumeMode))
	}
	for _, mode := range spec.AccessModes {
		switch mode {
		case corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadOnlyMany:
		default:
			wrong = append(wrong, fmt.Sprintf("access mode %s is not supported; use ReadWriteMany, ReadWriteOnce or ReadOnlyMany", mode))
		}
	}
	if spec.Selector != nil {
		wrong = append(wrong, "spec.selector is not supported: a new volume has no labels to select by; leave the selector out, or name an existing PersistentVolume in spec.volumeName")
	}
	if spec.DataSource != nil || spec.DataSourceRef != nil {
		wrong = append(wrong, "spec.dataSource is not supported: a new directory is empty; leave it out, and copy what it shall hold in a pod")
	}
	if c := spec.VolumeAttributesClassName; c != nil && *c != "" {
		wrong = append(wrong, fmt.Sprintf("volumeAttributesClassName %q is not supported: only CSI volumes can have one; leave it out", *c))
	}
	if asked, ok := spec.Resources.Requests[corev1.ResourceStorage]; !ok || asked.Sign() <= 0 {
		wrong = append(wrong, "spec.resources.requests.storage must be greater than 0")
	}
	return wrong
}

// persistentVolume returns the PersistentVolume for the request.
func (r request) persistentVolume() *corev1.PersistentVolume {
	modes := r.claim.Spec.AccessModes
	mode := corev1.PersistentVolumeFilesystem
	annotations := map[string]string{AnnotationOnDelete: string(r.OnDelete)}
	if r.EnforceSize {
		annotations[AnnotationEnforceSize] = "true"
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        r.place.volume,
			Annotations: annotations,
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   modes,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: r.claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			PersistentVolumeReclaimPolicy: r.policy,
			VolumeMode:                    &mode,
			MountOptions:                  r.mounts,
			PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{
				Server: r.place.export.Server,
				Path:   path.Join(r.place.export.Path, r.place.name),
				// A claim that only reads is mounted read-only: for NFS, nothing else enforces that.
				ReadOnly: onlyReads(modes),
			}},
		},
	}
}

func onlyReads(modes []corev1.PersistentVolumeAccessMode) bool {
	for _, m := range modes {
		if m != corev1.ReadOnlyMany {
			return false
		}
	}
	return len(modes) > 0
}
