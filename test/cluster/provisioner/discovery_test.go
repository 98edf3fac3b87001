//go:build cluster

package provisioner_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	v1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/test/await"
)

// localVolume returns a PersistentVolume as the provisioner creates it for a discovered volume.
func localVolume(name, path string, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	v := volumeOfHand(name, corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path, FSType: ptr("xfs")}})
	v.Labels = map[string]string{v1.LabelDiscoveredOn: "sim-1"}
	v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": v1.Discoverer}
	v.Spec.ClaimRef, v.Spec.StorageClassName, v.Spec.NodeAffinity = nil, "fast-disks", persistentvolume.NodeAffinity("sim-1")
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	for _, c := range change {
		c(v)
	}
	return v
}

// onlyUnclaimedAreDeleted: the provisioner may delete a withdrawn PersistentVolume only while no claim
// has it.
func (b *bed) onlyUnclaimedAreDeleted(t *testing.T, stolen kubernetes.Interface, v *corev1.PersistentVolume) {
	ctx := t.Context()
	try := func(name string) error {
		return stolen.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
	phased := func(v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase) {
		require.NoError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			now, err := b.client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			now.Status.Phase = phase
			_, err = b.client.CoreV1().PersistentVolumes().UpdateStatus(ctx, now, metav1.UpdateOptions{})
			return err
		}))
	}
	phased(v, corev1.VolumeAvailable)
	require.NoError(t, try(v.Name))
	claimed := localVolume("static-claimed", "/mnt/disks/fast/c", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "nobody"}
	})
	_, err := b.client.CoreV1().PersistentVolumes().Create(ctx, claimed, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, phase := range []corev1.PersistentVolumePhase{corev1.VolumeAvailable, corev1.VolumeBound} {
		phased(claimed, phase)
		require.ErrorContains(t, try(claimed.Name), "may only delete PersistentVolumes that are released")
	}
	require.NoError(t, b.client.CoreV1().PersistentVolumes().Delete(ctx, claimed.Name, metav1.DeleteOptions{}))
}

// testStolenDiscovery: with the provisioner's token, local PersistentVolumes can be created only for
// entries of the directories that the VolumeDiscovery names, and for none without a VolumeDiscovery.
func (b *bed) testStolenDiscovery(t *testing.T) {
	ctx, example := t.Context(), filepath.Join(b.source, "examples", "static.yaml")
	stolen, err := kubernetes.NewForConfig(b.as(account))
	require.NoError(t, err)
	create := func(v *corev1.PersistentVolume) func([]string) error {
		return func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	good := localVolume("static-good", "/mnt/disks/fast/a")
	b.refusedSoon(t, "provisioner-discovery.flexlvm.io", create(good))
	bare := localVolume("static-bare", "/mnt/disks/fast/a", func(v *corev1.PersistentVolume) { v.Labels = nil })
	b.refusedSoon(t, "whose node is in the label flexlvm.io/discovered-on", create(bare))
	_, err = b.client.CoreV1().PersistentVolumes().Create(ctx, bare, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err, "what others make is theirs, also where there is no VolumeDiscovery")
	b.kubectl(t, "apply", "-f", example)
	await.Until(t, longest, func() string {
		err := create(good)([]string{metav1.DryRunAll})
		return await.Missing(err == nil, "what the example names is refused: %v", err)
	})
	for says, v := range map[string]*corev1.PersistentVolume{
		"/etc of StorageClass":             localVolume("evil", "/etc"),
		"/mnt/disks/fast/a/b of Storage":   localVolume("evil", "/mnt/disks/fast/a/b"),
		"must not contain '..'":            localVolume("evil", "/mnt/disks/fast/.."),
		"/mnt/disks/raw/a of StorageClass": localVolume("evil", "/mnt/disks/raw/a"),
		"with the volumeMode": localVolume("evil", "/mnt/disks/fast/a", func(v *corev1.PersistentVolume) {
			v.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock)
			v.Spec.Local.FSType = nil
		}),
		"for one node, without a claim": localVolume("evil", "/mnt/disks/fast/a", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "mine"}
		}),
		"only with the mount options that flexlvm's": localVolume("evil", "/mnt/disks/fast/a", func(v *corev1.PersistentVolume) { v.Spec.MountOptions = []string{"noatime", "suid"} }),
	} {
		require.ErrorContains(t, create(v)(nil), says)
	}
	good.Spec.MountOptions = []string{"noatime", "nodev"}
	require.NoError(t, create(good)(nil))
	volumes := b.volumesOf(t, b.as(account))
	require.ErrorContains(t, volumes.patch(ctx, "static-good", `{"metadata":{"labels":{"a":"b"}}}`), "may only change and delete PersistentVolumes")
	b.onlyUnclaimedAreDeleted(t, stolen, good)
	require.ErrorContains(t, b.volumesOf(t, b.daemonOn(t, "sim-1")).patch(ctx, "static-good", `{"metadata":{"labels":{"a":"b"}}}`), "the flexlvm node daemon may only change")
	require.NoError(t, b.client.CoreV1().PersistentVolumes().Delete(ctx, "static-good", metav1.DeleteOptions{}))

	client, err := dynamic.NewForConfig(b.config)
	require.NoError(t, err)
	discoveries := client.Resource(v1.GroupVersion.WithResource("volumediscoveries"))
	let := func(name string, class map[string]any) error {
		_, err := discoveries.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1.GroupVersion.String(), "kind": "VolumeDiscovery", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"classes": []any{class}},
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	b.kubectl(t, "delete", "-f", example)
	require.NoError(t, let("flexlvm", map[string]any{"storageClassName": "fast", "directory": "/mnt/fast"}))
	require.ErrorContains(t, let("other", map[string]any{"storageClassName": "fast", "directory": "/mnt/fast"}), "is called flexlvm")
	for _, directory := range []string{"/", "/etc", "mnt/fast", "/mnt/fast/", "/mnt/../etc", "/mnt/x/.."} {
		require.ErrorContains(t, let("flexlvm", map[string]any{"storageClassName": "fast", "directory": directory}), "spec.classes[0].directory", directory)
	}
	require.ErrorContains(t, let("flexlvm", map[string]any{"storageClassName": "fast", "directory": "/mnt/fast", "cleanDevice": "Shred"}), "cleanDevice")
}
