//go:build cluster

package provisioner_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/await"
)

func (b *bed) testManifests(t *testing.T) {
	installer := filepath.Join(b.source, "installer")

	t.Run("every folder", func(t *testing.T) { b.testFolders(t, installer) })
	t.Run("applied twice", func(t *testing.T) {
		require.Empty(t, await.Changed(b.kubectl(t, "apply", "--validate=strict", "-k", installer)))
	})
	t.Run("pods are let in and placed", func(t *testing.T) {
		await.Until(t, longest, func() string {
			pods, err := b.client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			placed := map[string]int{}
			for _, p := range pods.Items {
				if p.Spec.NodeName != "" {
					placed[p.Labels["app.kubernetes.io/name"]]++
				}
			}
			return await.Missing(placed["flexlvm-provisioner"] == 2 && placed["flexlvm-installer"] == 3 && placed["flexlvm-gc"] == 3, "placed pods: %v", placed)
		})
	})
	t.Run("plugin directory and image are set in one place", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "installer")
		require.NoError(t, os.CopyFS(dir, os.DirFS(installer)))
		settings := filepath.Join(dir, "settings/kustomization.yaml")
		content, err := os.ReadFile(settings)
		require.NoError(t, err)
		changed := strings.NewReplacer(
			"pluginDir=/usr/libexec/kubernetes/kubelet-plugins/volume/exec", "pluginDir=/var/lib/kubelet/volumeplugins",
			"    newTag: v0.1.0\n\n", "    newName: registry.example.org/storage/flexlvm\n    newTag: v9\n\n",
		).Replace(string(content))
		require.NoError(t, os.WriteFile(settings, []byte(changed), 0o644))
		for _, which := range []string{"", "uninstall"} {
			built := b.kubectl(t, "kustomize", filepath.Join(dir, which))
			require.Contains(t, built, "path: /var/lib/kubelet/volumeplugins\n")
			require.NotContains(t, built, "/usr/libexec")
			require.Contains(t, built, "image: registry.example.org/storage/flexlvm:v9\n")
			require.NotContains(t, built, "image: localhost/flexlvm/flexlvm")
			require.NotContains(t, built, "flexlvm-settings")
			require.Equal(t, which == "", strings.Contains(built, "--verify"), "who uninstalls is ready without a driver")
			if which == "" {
				require.Contains(t, built, "expression: '''registry.example.org/storage/flexlvm:v9'''\n", "and loaders run no other image")
			}
		}
	})
	t.Run("uninstall takes the installer's place", func(t *testing.T) {
		out := b.kubectl(t, "apply", "--dry-run=server", "-k", filepath.Join(installer, "uninstall"))
		require.Contains(t, out, "daemonset.apps/flexlvm-installer configured")
		require.NotContains(t, out, "created", "it must be the same object, or both would run")
	})
	t.Run("bounds on who reads metrics", b.testMetricsManifests)
	t.Run("readers of metrics", b.testMetricsReaders)
	t.Run("monitoring", b.testMonitoring)
	t.Run("volume groups that are let in", b.testVolumeGroups)
	t.Run("declared volumes that are let in", b.testLocalVolumes)
	t.Run("rights of the provisioner", b.testRights)
	t.Run("rights of the node daemon", b.testDaemonRights)
	t.Run("node daemon and volumes", b.testDaemonVolumes)
	t.Run("node daemon and replicas", b.testDaemonReplicas)
	t.Run("node daemon and reports", b.testDaemonReports)
	t.Run("stolen token and what nodes discover", b.testStolenDiscovery)
	t.Run("stolen token and owners", b.testStolenOwners)
	t.Run("stolen token and the finalizer", b.testStolenFinalizer)
	t.Run("stolen token and shares", b.testStolenShare)
	t.Run("stolen token and claims", b.testStolenClaims)
	t.Run("stolen token and others' claims", b.testStolenDeletion)
	t.Run("attributes that kubelet writes", b.testForgedAttributes)
}

// testFolders checks that the API server accepts every folder that users can apply.
func (b *bed) testFolders(t *testing.T, installer string) {
	folders := 0
	err := filepath.WalkDir(installer, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Name() != "kustomization.yaml" {
			return err
		}
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.Contains(string(content), "kind: Component") {
			return nil // it is not usable alone
		}
		folders++
		b.kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-k", filepath.Dir(path))
		return nil
	})
	require.NoError(t, err)
	require.NotZero(t, folders)
}

// right is an action that an account may or may not do.
type right struct {
	verb, group, resource, namespace, name string
	allowed                                bool
}

// testRights checks the rights that the provisioner needs, and some that it must not have.
func (b *bed) testRights(t *testing.T) {
	b.requireRights(t, account, []right{
		{verb: "list", resource: "persistentvolumeclaims", allowed: true},
		{verb: "watch", resource: "persistentvolumeclaims", allowed: true},
		{verb: "update", resource: "persistentvolumeclaims", namespace: "default", allowed: true},
		{verb: "delete", resource: "persistentvolumeclaims", namespace: "default", allowed: true},
		{verb: "deletecollection", resource: "persistentvolumeclaims", namespace: "default"},
		{verb: "create", resource: "persistentvolumeclaims", namespace: "default", allowed: true},
		{verb: "create", resource: "persistentvolumes", allowed: true},
		{verb: "update", resource: "persistentvolumes"},
		{verb: "patch", resource: "persistentvolumes", allowed: true},
		{verb: "delete", resource: "persistentvolumes", allowed: true},
		{verb: "deletecollection", resource: "persistentvolumes"},
		{verb: "list", resource: "nodes", allowed: true},
		{verb: "watch", resource: "nodes", allowed: true},
		{verb: "delete", resource: "nodes"},
		{verb: "patch", resource: "nodes", allowed: true},
		{verb: "update", resource: "nodes"},
		{verb: "create", group: "batch", resource: "jobs", namespace: "default", allowed: true},
		{verb: "patch", group: "batch", resource: "jobs", namespace: "default"},
		{verb: "update", group: "flexlvm.io", resource: "volumemanagers/status", namespace: "default", allowed: true},
		{verb: "delete", group: "flexlvm.io", resource: "volumemanagers", namespace: "default"},
		{verb: "get", resource: "configmaps", namespace: system},
		{verb: "list", resource: "secrets", namespace: "default"},
		{verb: "get", resource: "namespaces", name: "kube-system", allowed: true},
		{verb: "get", resource: "namespaces", name: "default"},
		{verb: "create", resource: "events", namespace: "default", allowed: true},
		{verb: "list", resource: "events", namespace: "default", allowed: true}, // to report why a loader's pod is refused
		{verb: "watch", resource: "events", namespace: "default"},
		{verb: "get", resource: "secrets", namespace: system},
		{verb: "list", resource: "pods", namespace: "default", allowed: true},
		{verb: "list", group: "flexlvm.io", resource: "nodestorages", allowed: true},
		{verb: "patch", group: "flexlvm.io", resource: "localvolumes", namespace: "default", allowed: true},
		{verb: "update", group: "flexlvm.io", resource: "localvolumes/status", namespace: "default", allowed: true},
		{verb: "create", group: "flexlvm.io", resource: "localvolumes", namespace: "default"},
		{verb: "delete", group: "flexlvm.io", resource: "localvolumes", namespace: "default"},
		{verb: "update", group: "flexlvm.io", resource: "nodestorages"},
		{verb: "update", group: "storage.k8s.io", resource: "csistoragecapacities", namespace: system, allowed: true},
		{verb: "update", group: "storage.k8s.io", resource: "csistoragecapacities", namespace: "default"},
		{verb: "get", resource: "pods", namespace: "default"},
		{verb: "delete", resource: "pods", namespace: "default"},
		{verb: "create", resource: "pods", namespace: system},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: system, name: "flexlvm.io", allowed: true},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: system, name: "another"},
		{verb: "create", group: "coordination.k8s.io", resource: "leases", namespace: "kube-system"},
		{verb: "update", group: "storage.k8s.io", resource: "storageclasses"},
		{verb: "create", group: "flexlvm.io", resource: "nodestorages"},
	})
	// A stolen token gives no access to the nodes' file systems.
	config := b.as(account)
	stolen, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	path := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc"}}
	other := corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "example.org/other"}}
	otherCSI := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.org", VolumeHandle: "x"}}
	secret := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
		Driver: pv.Provisioner, VolumeHandle: "flexlvm/x", NodePublishSecretRef: &corev1.SecretReference{Namespace: "default", Name: "anothers"},
	}}
	for _, source := range []corev1.PersistentVolumeSource{path, other, otherCSI, secret} {
		evil := &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "evil"},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:               requests("1Gi").Requests,
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: source,
			},
		}
		b.refusedSoon(t, "may only create PersistentVolumes of the driver flexlvm.io/flexlvm", func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), evil, metav1.CreateOptions{DryRun: dryRun})
			return err
		})
	}
	b.testStolenSecrets(t, stolen)
	ours := volumeOfHand("evil", corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: pv.Driver}})
	ours.Annotations = map[string]string{pv.AnnotationUndelete: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11"}
	b.refusedSoon(t, "may not bring volumes back", func(dryRun []string) error {
		_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), ours, metav1.CreateOptions{DryRun: dryRun})
		return err
	})
}

// refusedSoon waits until an admission policy refuses a dry run, which takes some moments after the
// policy was applied, and then checks that the real request is refused.
func (b *bed) refusedSoon(t *testing.T, says string, try func(dryRun []string) error) {
	t.Helper()
	await.Until(t, longest, func() string {
		err := try([]string{metav1.DryRunAll})
		return await.Missing(err != nil && strings.Contains(err.Error(), says), "it is not refused with %q: %v", says, err)
	})
	require.ErrorContains(t, try(nil), says)
}

// requireRights checks a service account's rights with the API server.
func (b *bed) requireRights(t *testing.T, account string, rights []right) {
	t.Helper()
	for _, r := range rights {
		review, err := b.client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + system + ":" + account,
				Groups: []string{
					"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated",
				},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: r.verb, Group: r.group, Resource: r.resource, Namespace: r.namespace, Name: r.name,
				},
			},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, r.allowed, review.Status.Allowed, "%+v", r)
	}
}

// testExamples applies the examples that users are told to apply.
func (b *bed) testExamples(t *testing.T) {
	s := b.namespace(t, "examples")
	t.Cleanup(func() {
		_, err := b.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", filepath.Join(b.source, "examples/volumegroup.yaml"), "-f", filepath.Join(b.source, "examples/volumegroup-loop.yaml"))
		require.NoError(t, err)
		_, err = b.cluster.Kubectl(context.WithoutCancel(t.Context()), "delete", "-f", filepath.Join(b.source, "examples/volumeattributesclass.yaml"))
		require.NoError(t, err)
		for _, class := range []string{"flexlvm-explained", "flexlvm-striped", "flexlvm-raid1", "flexlvm-thin", "flexlvm-clonable", "flexlvm-small"} {
			require.NoError(t, b.client.StorageV1().StorageClasses().Delete(context.WithoutCancel(t.Context()), class, metav1.DeleteOptions{}))
		}
	})
	b.kubectl(t, "apply", "-n", s.name, "-f", filepath.Join(b.source, "examples"))
	s.pod("explained", "") // the class's example has a claim, which gets a pod here
	b.report(t, "sim-1", map[string]volume.Bytes{"flexlvm": roomy, "flexlvm/thinpool": roomy})
	t.Cleanup(func() { b.reportRoomy(t) })
	s.pod("original", "")
	original := s.volumeOf("original")
	s.pod("original-copy", "")
	require.Equal(t, original.Name, s.volumeOf("original-copy").Spec.FlexVolume.Options["cloneOf"])
	for claim, size := range map[string]string{
		"data": "1Gi", "explained": "64Mi",
		"data-shards-0": "512Mi", "data-shards-1": "512Mi", "data-shards-2": "512Mi",
	} {
		capacity := s.volumeOf(claim).Spec.Capacity[corev1.ResourceStorage]
		require.Equal(t, size, capacity.String(), claim)
	}
	require.Equal(t, "100000", s.volumeOf("explained").Spec.FlexVolume.Options["inodes"])
	require.Equal(t, "rbps=104857600 wbps=52428800 riops=5000 wiops=2000", s.volumeOf("explained").Annotations["flexlvm.io/io-limits"])
	s.endStatefulSets("shards")
}

// endStatefulSets deletes the StatefulSets and waits until no pods are left. No kubelet removes the
// pods, so the test completes the garbage collector's deletion.
func (s *space) endStatefulSets(names ...string) {
	s.t.Helper()
	for _, name := range names {
		require.NoError(s.t, s.client.AppsV1().StatefulSets(s.name).Delete(s.t.Context(), name, metav1.DeleteOptions{}))
	}
	await.Until(s.t, longest, func() string {
		s.deletePods(s.t.Context())
		pods, err := s.client.CoreV1().Pods(s.name).List(s.t.Context(), metav1.ListOptions{})
		require.NoError(s.t, err)
		time.Sleep(200 * time.Millisecond)
		return await.Missing(len(pods.Items) == 0, "%d pods are left", len(pods.Items))
	})
}
