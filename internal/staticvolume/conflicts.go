package staticvolume

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/diskid"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
)

// page is the page size of a list of PersistentVolumes.
const page = 500

// namesOf returns what the disk of a PersistentVolume is called.
func namesOf(v *corev1.PersistentVolume) diskid.Names {
	return diskid.ParseNames(v.Annotations[flexlvmv1.AnnotationDisk], v.Annotations[flexlvmv1.AnnotationDiskAliases])
}

// takenBy returns a reason and a message if another PersistentVolume has the disk, on any node, or the path.
func (c *Controller) takenBy(wanted *corev1.PersistentVolume) (reason, why string) {
	for i := range c.locals {
		v := &c.locals[i]
		if v.Name == wanted.Name {
			continue
		}
		disk := namesOf(v)
		overlaps := disk.OverlapElsewhere
		if v.Labels[flexlvmv1.LabelDiscoveredOn] == wanted.Labels[flexlvmv1.LabelDiscoveredOn] {
			overlaps = disk.Overlap
		}
		if overlaps(namesOf(wanted)) {
			return "DiskTaken", fmt.Sprintf("PersistentVolume %s (%s, %s on node %s) has the disk; offer it at one path of one node only, and delete that PersistentVolume only once nobody needs its data", v.Name, disk.ID, persistentvolume.NodePath(v), v.Labels[flexlvmv1.LabelDiscoveredOn])
		}
		if persistentvolume.SharePath(v, wanted) {
			return "PathTaken", fmt.Sprintf("%s has PersistentVolume %s, which another program has created; once that is released, clean the disk and delete it", persistentvolume.NodePath(v), v.Name)
		}
	}
	return "", ""
}

// listLocals lists the local and hostPath PersistentVolumes, at most once per round and only if a PersistentVolume is to be created:
// the provisioner's caches hold few of the PersistentVolumes that other programs create. An error lasts for the rest
// of the round, because every disk would wait for the same list.
func (c *Controller) listLocals(ctx context.Context) error {
	if c.locals == nil && c.localsErr == nil {
		c.locals, c.localsErr = c.allLocals(ctx)
	}
	return c.localsErr
}

func (c *Controller) allLocals(ctx context.Context) ([]corev1.PersistentVolume, error) {
	found := []corev1.PersistentVolume{}
	for options := (metav1.ListOptions{Limit: page}); ; {
		list, err := c.listPage(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list PersistentVolumes: %w", err)
		}
		for i := range list.Items {
			if persistentvolume.NodePath(&list.Items[i]) != "" {
				found = append(found, stripLocal(&list.Items[i]))
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return found, nil
		}
	}
}

// listPage has a timeout of its own, because a large cluster has hundreds of pages.
func (c *Controller) listPage(ctx context.Context, options metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.Client.CoreV1().PersistentVolumes().List(ctx, options)
}

// stripLocal returns a local or hostPath PersistentVolume with only the fields that takenBy needs.
func stripLocal(v *corev1.PersistentVolume) corev1.PersistentVolume {
	return corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: v.Name,
			Annotations: map[string]string{
				flexlvmv1.AnnotationDisk:        v.Annotations[flexlvmv1.AnnotationDisk],
				flexlvmv1.AnnotationDiskAliases: v.Annotations[flexlvmv1.AnnotationDiskAliases],
			},
			Labels: map[string]string{flexlvmv1.LabelDiscoveredOn: v.Labels[flexlvmv1.LabelDiscoveredOn]},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: v.Spec.Local, HostPath: v.Spec.HostPath}, NodeAffinity: v.Spec.NodeAffinity,
		},
	}
}
