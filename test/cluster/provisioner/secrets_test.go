//go:build cluster

package provisioner_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/test/await"
)

// testStolenSecrets: a stolen token cannot point kubelet to a Secret other than the class's.
func (b *bed) testStolenSecrets(t *testing.T, stolen *kubernetes.Clientset) {
	t.Helper()
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "secretive"}, Provisioner: pv.Provisioner,
		Parameters: map[string]string{
			"encrypted": "true", "door": "csi",
			"csi.storage.k8s.io/node-publish-secret-name":      "${pvc.namespace}.${pvc.name}",
			"csi.storage.k8s.io/node-publish-secret-namespace": "keys",
		},
	}
	_, err := b.client.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.client.StorageV1().StorageClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}))
	})
	secret := func(namespace, name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: namespace, Name: name}
	}
	mode := corev1.PersistentVolumeFilesystem
	try := func(of string, publish, expand *corev1.SecretReference, encrypted string) func([]string) error {
		object := volumeOfHand("evil", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: pv.Provisioner, VolumeHandle: "flexlvm/evil", VolumeAttributes: map[string]string{"encrypted": encrypted},
			NodePublishSecretRef: publish, NodeExpandSecretRef: expand,
		}})
		object.Annotations, object.Spec.StorageClassName, object.Spec.VolumeMode = nil, of, &mode
		object.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}
		return func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), object, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	right := secret("keys", "shop.data")
	const says = "may only name the Secrets that StorageClass secretive says"
	const none, only = "nonexistent", "may only create PersistentVolumes of the driver"
	for _, mode = range []corev1.PersistentVolumeMode{corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock} {
		b.refusedSoon(t, says, try(class.Name, secret("keys", "other.data"), right, "true"))
		b.refusedSoon(t, says, try(class.Name, right, secret("default", "shop.data"), "true"))
		// Whatever the class: none has this name, and then the other policy does not apply.
		b.refusedSoon(t, only, try(none, secret("kube-system", "shop.data"), right, "true"))
		b.refusedSoon(t, only, try(none, right, nil, "true"))
		b.refusedSoon(t, only, try(none, right, right, "false"))
		require.NoError(t, try(class.Name, right, right, "true")([]string{metav1.DryRunAll}), "as the class says")
	}
	b.deleteClasses(t)
	await.Until(t, longest, func() string {
		err := try(class.Name, secret("keys", "other.data"), right, "true")([]string{metav1.DryRunAll})
		return await.Missing(err == nil || !strings.Contains(err.Error(), says), "the policy still knows the class: %v", err)
	})
	object := volumeOfHand("by-hand", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}})
	_, err = b.client.CoreV1().PersistentVolumes().Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err, "others need no class")
}

// deleteClasses deletes all StorageClasses until the end of the test.
func (b *bed) deleteClasses(t *testing.T) {
	t.Helper()
	classes := b.client.StorageV1().StorageClasses()
	all, err := classes.List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		for i := range all.Items {
			all.Items[i].UID, all.Items[i].ResourceVersion = "", ""
			_, err := classes.Create(context.Background(), &all.Items[i], metav1.CreateOptions{})
			require.NoError(t, err)
		}
	})
	for _, c := range all.Items {
		require.NoError(t, classes.Delete(t.Context(), c.Name, metav1.DeleteOptions{}))
	}
}
