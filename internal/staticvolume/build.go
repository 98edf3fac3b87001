package staticvolume

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// noProvisioner is the provisioner of StorageClasses whose volumes exist beforehand.
const noProvisioner = "kubernetes.io/no-provisioner"

// Name returns the name of the PersistentVolume of a path on a node. It depends on nothing else, so a path
// never gets two PersistentVolumes.
func Name(node, path string) string {
	sum := sha256.Sum256([]byte(node + "\x00" + path))
	return fmt.Sprintf("static-%x", sum[:10])
}

// classOf returns the class that an entry was discovered for, or nil if the VolumeDiscovery has none.
func classOf(d *flexlvmv1.VolumeDiscovery, storageClass, at string) *flexlvmv1.DiscoveryClass {
	for i := range d.Spec.Classes {
		if c := &d.Spec.Classes[i]; c.StorageClassName == storageClass && path.Dir(at) == c.Directory {
			return c
		}
	}
	return nil
}

// checkClass returns an error if claims cannot use the volumes of a StorageClass.
func checkClass(class *storagev1.StorageClass) error {
	switch {
	case class.Provisioner != noProvisioner:
		return fmt.Errorf("StorageClass %s has the provisioner %q, and existing file systems and disks need %q; create another StorageClass", class.Name, class.Provisioner, noProvisioner)
	case class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Errorf("StorageClass %s has no volumeBindingMode: %s, without which claims are bound to disks of nodes where their pods cannot run; create another StorageClass", class.Name, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	_, err := mountOptionsOf(class)
	return err
}

// mountOptionsOf returns a StorageClass's mount options, all of which must be per-mount flags.
func mountOptionsOf(class *storagev1.StorageClass) (out []string, err error) {
	options, err := volume.ParseMountOptions("mountOptions", class.MountOptions)
	if err != nil {
		return nil, fmt.Errorf("StorageClass %s: %w; create another StorageClass", class.Name, err)
	}
	for _, o := range options {
		out = append(out, string(o))
	}
	return out, nil
}

var errNoHostname = errors.New("has no label " + corev1.LabelHostname + ", by which pods are scheduled to it")

// build returns the PersistentVolume of an entry that a node has discovered.
func build(node *corev1.Node, class *flexlvmv1.DiscoveryClass, storage *storagev1.StorageClass, found *flexlvmv1.Discovered) (*corev1.PersistentVolume, error) {
	hostname := node.Labels[corev1.LabelHostname]
	if hostname == "" {
		return nil, fmt.Errorf("node %s %w; give it that label, with the name of the node", node.Name, errNoHostname)
	}
	options, err := mountOptionsOf(storage)
	if err != nil {
		return nil, err
	}
	mode := corev1.PersistentVolumeMode(class.VolumeMode)
	if mode == "" {
		mode = corev1.PersistentVolumeFilesystem
	}
	access := corev1.PersistentVolumeAccessMode(class.AccessMode)
	if access == "" {
		access = corev1.ReadWriteOnce
	}
	labels := map[string]string{}
	for name, value := range class.Labels {
		if !strings.HasPrefix(name, "flexlvm.io/") {
			labels[name] = string(value)
		}
	}
	for _, name := range class.NodeLabels {
		if value, there := node.Labels[name]; there && !strings.HasPrefix(name, "flexlvm.io/") {
			labels[name] = value
		}
	}
	labels[flexlvmv1.LabelDiscoveredOn] = pv.NodeLabelValue(node.Name)
	out := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(node.Name, found.Path), Labels: labels,
			Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by": flexlvmv1.Discoverer,
				flexlvmv1.AnnotationDisk:          found.Disk,
				flexlvmv1.AnnotationOffer:         strconv.FormatInt(found.Offer, 10),
			},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: found.Size},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{access},
			PersistentVolumeReclaimPolicy: policyOf(class, storage, found.Kind),
			StorageClassName:              class.StorageClassName,
			VolumeMode:                    &mode,
			MountOptions:                  options,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: found.Path}},
			NodeAffinity:                  persistentvolume.NodeAffinity(hostname),
		},
	}
	if found.Aliases != "" {
		out.Annotations[flexlvmv1.AnnotationDiskAliases] = found.Aliases
	}
	if class.FSType != "" {
		out.Spec.Local.FSType = &class.FSType
	}
	return out, nil
}

// kindDevice is discovery.Device, whose package is only for nodes; a test compares them.
const kindDevice = "Device"

// policyOf returns the reclaim policy of the StorageClass, or Retain if the class keeps released volumes or has
// an unknown value.
func policyOf(class *flexlvmv1.DiscoveryClass, storage *storagev1.StorageClass, kind string) corev1.PersistentVolumeReclaimPolicy {
	keep := class.CleanFilesystem == flexlvmv1.CleanKeep
	if kind == kindDevice {
		keep = class.CleanDevice == flexlvmv1.CleanKeep
	}
	if keep || class.Check() != nil || storage.ReclaimPolicy != nil && *storage.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return corev1.PersistentVolumeReclaimRetain
	}
	return corev1.PersistentVolumeReclaimDelete
}
