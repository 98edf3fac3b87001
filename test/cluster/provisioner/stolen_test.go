//go:build cluster

package provisioner_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/await"
)

// nobodysChild makes Kubernetes delete the object, because its owner does not exist.
const nobodysChild = `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"none","uid":"none"}]}}`

// as returns an API configuration with the account's rights, as a stolen token has.
func (b *bed) as(account string) *rest.Config {
	config := rest.CopyConfig(b.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + system + ":" + account}
	return config
}

// testStolenOwners: an account that may change an object cannot get it deleted by naming an owner that
// does not exist.
func (b *bed) testStolenOwners(t *testing.T) {
	ctx, s := t.Context(), b.namespace(t, "owners")
	stolen, err := kubernetes.NewForConfig(b.as(account))
	require.NoError(t, err)
	uid := s.manager("v")
	s.claim("stranger", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("another") })
	s.claim("ours", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr("another")
		c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": pv.Provisioner}
	})
	s.replicaOf("v", uid, "dataset", func(c *corev1.PersistentVolumeClaim) { c.Labels[replica.LabelOwner] = string(uid) })
	for _, name := range []string{"stranger", "ours", "dataset"} {
		b.refusedSoon(t, "may not change the owners of a claim", func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumeClaims(s.name).Patch(ctx, name, types.MergePatchType, []byte(nobodysChild), metav1.PatchOptions{DryRun: dryRun})
			return err
		})
	}
	b.refusedSoon(t, "may not change the owners of a node", func(dryRun []string) error {
		_, err := stolen.CoreV1().Nodes().Patch(ctx, "sim-2", types.MergePatchType, []byte(nobodysChild), metav1.PatchOptions{DryRun: dryRun})
		return err
	})
	managers, err := dynamic.NewForConfig(b.as(account))
	require.NoError(t, err)
	_, err = managers.Resource(flexlvmv1.GroupVersion.WithResource(replica.OwnerPlural)).Namespace(s.name).
		Patch(ctx, "v", types.MergePatchType, []byte(nobodysChild), metav1.PatchOptions{})
	require.ErrorContains(t, err, "may not change the owners of a VolumeManager")

	b.persistentVolume(t, "owned", "sim-1", pv.Driver, corev1.VolumeAvailable)
	b.persistentVolume(t, "stranger", "sim-1", "example.org/other", corev1.VolumeAvailable)
	for _, config := range []*rest.Config{b.as(account), b.daemonOn(t, "sim-1")} {
		volumes := b.volumesOf(t, config)
		require.ErrorContains(t, volumes.patch(ctx, "owned", nobodysChild), "may not change the owners of a PersistentVolume")
		require.ErrorContains(t, volumes.patch(ctx, "stranger", nobodysChild), "of the driver flexlvm.io/flexlvm")
	}

	// A report belongs to its own node only.
	reports, err := dynamic.NewForConfig(b.daemonOn(t, "sim-1"))
	require.NoError(t, err)
	owned := report(t, "sim-1", "")
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "sim-2", UID: "none"}})
	_, err = reports.Resource(flexlvmv1.GroupVersion.WithResource("nodestorages")).Create(ctx, owned, metav1.CreateOptions{})
	require.ErrorContains(t, err, "may only create a NodeStorage that its node owns")
	asking := report(t, "sim-1", "")
	require.NoError(t, unstructured.SetNestedSlice(asking.Object, []any{map[string]any{
		"id": "1", "time": "2026-11-28T12:00:00Z", "group": "flexlvm", "name": "pvc-1", "filesystemUUID": "uuid", "state": "unreferenced",
	}}, "spec", "requests"))
	_, err = reports.Resource(flexlvmv1.GroupVersion.WithResource("nodestorages")).Create(ctx, asking, metav1.CreateOptions{})
	require.ErrorContains(t, err, "may not write spec.requests of the NodeStorage of its node")
	made, err := reports.Resource(flexlvmv1.GroupVersion.WithResource("nodestorages")).Create(ctx, report(t, "sim-1", ""), metav1.CreateOptions{})
	require.NoError(t, err)
	made.SetOwnerReferences(owned.GetOwnerReferences())
	after, err := reports.Resource(flexlvmv1.GroupVersion.WithResource("nodestorages")).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if err == nil { // the API server may ignore changes outside of the status, and the policy refuses the rest
		require.Empty(t, after.GetOwnerReferences())
	}
	b.kubectl(t, "delete", "nodestorage", "sim-1")
}

// testStolenFinalizer: flexlvm's finalizer cannot be removed from a bound PersistentVolume, even if it
// is being deleted and Kubernetes' own finalizer is gone.
func (b *bed) testStolenFinalizer(t *testing.T) {
	ctx, s := t.Context(), b.namespace(t, "finalizer")
	b.persistentVolume(t, "held", "sim-1", pv.Driver, corev1.VolumeAvailable)
	s.claim("data", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "held" })
	get := func() *corev1.PersistentVolume {
		v, err := b.client.CoreV1().PersistentVolumes().Get(ctx, "held", metav1.GetOptions{})
		require.NoError(t, err)
		return v
	}
	phase := func(is corev1.PersistentVolumePhase) {
		await.Until(t, longest, func() string {
			v := get()
			return await.Missing(v.Status.Phase == is, "held is %s", v.Status.Phase)
		})
	}
	phase(corev1.VolumeBound)
	admin := persistentVolumes{b.client}
	require.NoError(t, admin.remove(ctx, "held"))
	require.NoError(t, admin.patch(ctx, "held", fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, pv.Finalizer)))
	letGo := `{"metadata":{"finalizers":null}}`
	thieves := []persistentVolumes{b.volumesOf(t, b.as(account)), b.volumesOf(t, b.daemonOn(t, "sim-1"))}
	for _, volumes := range thieves {
		require.ErrorContains(t, volumes.patch(ctx, "held", letGo), "released or deleted and no claim is bound to it")
	}
	require.Equal(t, []string{pv.Finalizer}, get().Finalizers)
	require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(s.name).Delete(ctx, "data", metav1.DeleteOptions{}))
	phase(corev1.VolumeReleased)
	require.NoError(t, thieves[1].patch(ctx, "held", letGo))
}

// testStolenShare: the provisioner's token can create PersistentVolumes for the shares of datasets, but
// not for others' claims.
func (b *bed) testStolenShare(t *testing.T) {
	stolen, err := kubernetes.NewForConfig(b.as(account))
	require.NoError(t, err)
	share := func(change func(*corev1.PersistentVolume)) error {
		v := volumeOfHand("flexlvm-ds-0123456789abcdef", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs.example.org", Path: "/x"}})
		v.Labels, v.Annotations = map[string]string{replica.LabelDataset: "0123456789abcdef"}, map[string]string{}
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "v-a"}
		change(v)
		_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	require.NoError(t, share(func(*corev1.PersistentVolume) {}))
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"for whoever asks": func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"for the system":   func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.Namespace = metav1.NamespaceSystem },
		"of a class":       func(v *corev1.PersistentVolume) { v.Spec.StorageClassName = "another" },
		"with options":     func(v *corev1.PersistentVolume) { v.Spec.MountOptions = []string{"vers=3"} },
		"with an option":   func(v *corev1.PersistentVolume) { v.Spec.NFS.Server = "--fstab=/var/lib/x" },
		"with a path":      func(v *corev1.PersistentVolume) { v.Spec.NFS.Server = "nas:/sets" },
		"above the share":  func(v *corev1.PersistentVolume) { v.Spec.NFS.Path = "/sets/../home" },
		"to be emptied": func(v *corev1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
		},
		"of another name": func(v *corev1.PersistentVolume) { v.Name = "flexlvm-ds-other" },
	} {
		require.ErrorContains(t, share(change), "those of datasets on NFS", name)
	}
	for annotation, value := range map[string]string{
		"volume.beta.kubernetes.io/mount-options":                    "vers=3",
		"volume.beta.kubernetes.io/storage-class":                    "another",
		"pv.kubernetes.io/provisioned-by":                            "example.org/other",
		"pv.kubernetes.io/migrated-to":                               "example.org/other",
		"volume.kubernetes.io/provisioner-deletion-secret-name":      "credentials",
		"volume.kubernetes.io/provisioner-deletion-secret-namespace": "shop",
	} {
		err := share(func(v *corev1.PersistentVolume) { v.Annotations[annotation] = value })
		require.ErrorContains(t, err, "with annotations of flexlvm", annotation)
	}
	s := b.namespace(t, "readers")
	s.claim("pending", func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr("another") })
	s.claim("reader", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName, c.Spec.VolumeName = ptr(""), "flexlvm-ds-0123456789abcdef"
	})
	bind := func(claim, change string) func(dryRun []string) error {
		return func(dryRun []string) error {
			_, err := b.client.CoreV1().PersistentVolumeClaims(s.name).Patch(t.Context(), claim, types.MergePatchType, []byte(change), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	b.refusedSoon(t, "only if it has named the dataset's PersistentVolume", bind("pending", `{"spec":{"volumeName":"flexlvm-ds-0123456789abcdef"}}`))
	require.NoError(t, bind("pending", `{"spec":{"volumeName":"another"}}`)([]string{metav1.DryRunAll}))
	require.NoError(t, bind("reader", `{"metadata":{"annotations":{"pv.kubernetes.io/bind-completed":"yes"}}}`)(nil))
	b.testStolenSecond(t, stolen)
}

// testStolenSecond: a claim's volume cannot be obtained through a second PersistentVolume.
func (b *bed) testStolenSecond(t *testing.T, stolen kubernetes.Interface) {
	for volume, says := range map[string]string{
		"mine": "", "theirs": "that are named after their volume", "ds-0123456789abcdef": "", "ds-0123456789abcdef-1": "that are named after their volume",
	} {
		for name, source := range map[string]corev1.PersistentVolumeSource{
			"FlexVolume": {FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: pv.Driver, Options: map[string]string{"volume": volume}}},
			"CSI":        {CSI: &corev1.CSIPersistentVolumeSource{Driver: pv.Provisioner, VolumeHandle: "flexlvm/" + volume + "/readers"}},
		} {
			v := volumeOfHand("mine", source)
			v.Annotations = nil
			_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if says == "" {
				require.NoError(t, err, name+volume)
			} else {
				require.ErrorContains(t, err, says, name+volume)
			}
		}
	}
}

// testStolenClaims: the provisioner's token can create only claims of datasets.
func (b *bed) testStolenClaims(t *testing.T) {
	stolen, err := kubernetes.NewForConfig(b.as(account))
	require.NoError(t, err)
	s := b.namespace(t, "claims")
	const hash = "0123456789abcdef"
	claim := func(change func(*corev1.PersistentVolumeClaim)) error {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.name, Name: "v-a-0", Annotations: map[string]string{replica.AnnotationVolumeID: "a"},
				Labels:          map[string]string{replica.LabelOwner: "uid", replica.LabelDataset: hash, "flexlvm.io/replica": "0"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "flexlvm.io/v1", Kind: replica.OwnerKind, Name: "v", UID: "uid", Controller: ptr(true)}},
			},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr(datasetClass), Resources: requests("1Gi"),
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			},
		}
		change(c)
		_, err := stolen.CoreV1().PersistentVolumeClaims(c.Namespace).Create(t.Context(), c, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	readers := func(c *corev1.PersistentVolumeClaim) { c.Name, c.Spec.VolumeName = "v-a", replica.ReadersPV(hash) }
	require.NoError(t, claim(func(*corev1.PersistentVolumeClaim) {}))
	require.NoError(t, claim(readers))
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"the system's": func(c *corev1.PersistentVolumeClaim) { c.Namespace = metav1.NamespaceSystem },
		"ours":         func(c *corev1.PersistentVolumeClaim) { c.Namespace = system },
		"of two owners": func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = append(c.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ServiceAccount", Name: "default", UID: "uid"})
		},
		"of an unknown version": func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences[0].APIVersion = "flexlvm.io/v9" },
		"of a node": func(c *corev1.PersistentVolumeClaim) { // Kubernetes would take the node's UID as proof that the owner exists
			c.OwnerReferences[0].Name, c.Name = "x"+strings.Repeat("-", 36)+"/../../../../../../../api/v1/nodes/sim-1", "x-01234567-0"
		},
		"of another label":        func(c *corev1.PersistentVolumeClaim) { c.Labels[replica.LabelOwner] = "other" },
		"of no dataset":           func(c *corev1.PersistentVolumeClaim) { delete(c.Labels, replica.LabelDataset) },
		"of a StatefulSet's name": func(c *corev1.PersistentVolumeClaim) { c.Name = "data-web-0" },
		"of another number":       func(c *corev1.PersistentVolumeClaim) { c.Name = "v-a-1" },
		"of another's volume":     func(c *corev1.PersistentVolumeClaim) { readers(c); c.Spec.VolumeName = "theirs" },
		"of another's data": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "theirs"}
		},
	} {
		require.ErrorContains(t, claim(change), "may only create claims of a dataset", name)
	}
}

// testStolenDeletion: of the claims that no VolumeManager owns, the provisioner's token can delete only
// those through which a dataset is read, even if a guest has removed the owner.
func (b *bed) testStolenDeletion(t *testing.T) {
	stolen, err := kubernetes.NewForConfig(b.as(account))
	require.NoError(t, err)
	s := b.namespace(t, "deletion")
	remove := func(volume string) error {
		c := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name, GenerateName: "claim-"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr(""), VolumeName: volume, Resources: requests("1Gi"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany},
			},
		}
		c, err := s.client.CoreV1().PersistentVolumeClaims(s.name).Create(t.Context(), c, metav1.CreateOptions{})
		require.NoError(t, err)
		return stolen.CoreV1().PersistentVolumeClaims(s.name).Delete(t.Context(), c.Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
	require.NoError(t, remove(replica.ReadersPV("0123456789abcdef")))
	require.ErrorContains(t, remove("theirs"), "may only delete claims")
}

// testForgedAttributes: if kubelet does not pass the pod's information (podInfoOnMount: false), a
// PersistentVolume cannot forge it.
func (b *bed) testForgedAttributes(t *testing.T) {
	ctx := t.Context()
	create := func(attributes map[string]string, driver string) error {
		object := volumeOfHand("forged", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "flexlvm/pvc-1", VolumeAttributes: attributes}})
		_, err := b.client.CoreV1().PersistentVolumes().Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	b.refusedSoon(t, "may hold no key that begins with csi.storage.k8s.io/", func([]string) error {
		return create(map[string]string{"namespace": "shop", "csi.storage.k8s.io/pod.namespace": "shop"}, pv.Provisioner)
	})
	require.ErrorContains(t, create(map[string]string{"csi.storage.k8s.io/ephemeral": "false"}, pv.Provisioner), "leave it out")
	require.NoError(t, create(map[string]string{"namespace": "shop", "volumeGroup": "flexlvm"}, pv.Provisioner))
	require.NoError(t, create(nil, pv.Provisioner))
	require.NoError(t, create(map[string]string{"csi.storage.k8s.io/pod.namespace": "shop"}, "example.org"))
}
