//go:build cluster

package provisioner_test

// The NFS provisioner on a real API server. Its exports are directories of this machine. A real server
// is tested by TestJobs in test/cluster.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

const (
	nfsAccount  = "flexlvm-nfs-provisioner"
	nfsServer   = "10.88.0.1"
	nfsPath     = "/srv/flexlvm"
	nfsReadOnly = "/srv/readonly"
	nfsPort     = 8088
	// nfsFinalizer keeps a PersistentVolume until its directory has been disposed of.
	nfsFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// share is the bed with the NFS provisioner.
type share struct {
	*bed
	export string // the export's directory on this machine
}

func (b *bed) testNFS(t *testing.T) {
	other := *b
	s := &share{bed: &other, export: t.TempDir()}
	for _, name := range []string{"bait", "archived-bait"} {
		require.NoError(t, os.Mkdir(filepath.Join(s.export, name), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(s.export, name, "file"), []byte(name), 0o644))
	}
	s.install(t)
	s.kubeconfig = s.accountKubeconfig(t, nfsAccount)
	s.command = []string{"nfs"}
	s.flags = []string{
		"--export=" + nfsServer + ":" + nfsPath + "=" + s.export,
		"--export=" + nfsServer + ":" + nfsReadOnly + "=" + readOnly(t),
	}
	t.Run("rights", s.testRights)
	t.Run("stolen token", s.testStolen)
	stop := s.keep(t, nfsPort, nil)
	defer stop()
	s.ready(t, nfsPort)
	t.Run("life", s.testLife)
	t.Run("refusals", s.testRefusals)
	t.Run("examples", s.testExamples)
	t.Run("removed by hand", s.testRemovedByHand)
	t.Run("deleted by hand", s.testDeletedByHand)
	t.Run("read-only export", s.testReadOnly)
	t.Run("planted links", s.testPlanted)
	t.Run("volumes made by hand", s.testMadeByHand)
	stop()
	t.Run("killed again and again", s.testKilled)
	for _, name := range []string{"bait", "archived-bait"} {
		content, err := os.ReadFile(filepath.Join(s.export, name, "file"))
		require.NoError(t, err)
		require.Equal(t, name, string(content))
	}
}

// readOnly returns a read-only file system.
func readOnly(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, ""))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

// install applies the shipped manifests, with the server and the path set in the one place for them.
func (s *share) install(t *testing.T) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "installer")
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(s.source, "installer"))))
	file := filepath.Join(dir, "nfs/kustomization.yaml")
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	changed := strings.NewReplacer("server=nfs.example.org", "server="+nfsServer, "path=/srv/flexlvm", "path="+nfsPath).Replace(string(content))
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o644))
	built := s.kubectl(t, "kustomize", filepath.Join(dir, "nfs"))
	for _, left := range []string{"from-kustomization", "flexlvm-nfs-settings", "example.org"} {
		require.NotContains(t, built, left)
	}
	require.Contains(t, built, "image: localhost/flexlvm/flexlvm:v")
	require.Contains(t, built, "value: "+nfsPath)
	s.kubectl(t, "apply", "-k", filepath.Join(dir, "nfs"))
	require.Empty(t, await.Changed(s.kubectl(t, "apply", "-k", filepath.Join(dir, "nfs"))))
	class, err := s.client.StorageV1().StorageClasses().Get(t.Context(), "flexlvm-nfs", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"server": nfsServer, "path": nfsPath, "onDelete": "archive"}, class.Parameters)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := s.cluster.Kubectl(ctx, "delete", "-k", filepath.Join(dir, "nfs"), "--wait=false")
		require.NoError(t, err)
	})
}

func (s *share) testRights(t *testing.T) {
	s.requireRights(t, nfsAccount, []right{
		{verb: "list", resource: "persistentvolumeclaims", allowed: true},
		{verb: "update", resource: "persistentvolumeclaims", namespace: "default"},
		{verb: "delete", resource: "persistentvolumeclaims", namespace: "default"},
		{verb: "create", resource: "persistentvolumes", allowed: true},
		{verb: "delete", resource: "persistentvolumes", allowed: true},
		{verb: "patch", resource: "persistentvolumes", allowed: true},
		{verb: "update", resource: "persistentvolumes"},
		{verb: "list", group: "storage.k8s.io", resource: "storageclasses", allowed: true},
		{verb: "list", resource: "pods", namespace: "default"},
		{verb: "list", resource: "nodes"},
		{verb: "get", resource: "secrets", namespace: system},
		{verb: "create", resource: "events", namespace: "default", allowed: true},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: system, name: "nfs.flexlvm.io", allowed: true},
		{verb: "update", group: "coordination.k8s.io", resource: "leases", namespace: system, name: "flexlvm.io"},
	})
}

// volumeOfHand returns a PersistentVolume whose annotations claim that the provisioner created it.
func volumeOfHand(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by": "nfs.flexlvm.io", "nfs.flexlvm.io/on-delete": "delete",
		}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: requests("1Gi").Requests, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete, PersistentVolumeSource: source,
		},
	}
}

// nfsClass creates a class of the export for the duration of the test.
func (s *share) nfsClass(sp *space, name string, change func(*storagev1.StorageClass), parameters ...string) {
	sp.class(name, func(c *storagev1.StorageClass) {
		c.Provisioner, c.VolumeBindingMode = "nfs.flexlvm.io", nil
		c.Parameters = map[string]string{"server": nfsServer, "path": nfsPath}
		for i := 0; i < len(parameters); i += 2 {
			c.Parameters[parameters[i]] = parameters[i+1]
		}
		if change != nil {
			change(c)
		}
	})
}

func (s *share) claimOf(sp *space, name, class string) {
	sp.claim(name, func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr(class)
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	})
}

// directory waits until a claim is bound, writes a file into its directory, and returns its
// PersistentVolume and the directory.
func (s *share) directory(t *testing.T, sp *space, claim string) (v *corev1.PersistentVolume, dir string) {
	t.Helper()
	v = sp.volumeOf(claim)
	dir = filepath.Join(s.export, filepath.Base(v.Spec.NFS.Path))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte(claim), 0o644))
	return v, dir
}

// deleted deletes a claim and waits until its PersistentVolume is gone.
func (s *share) deleted(t *testing.T, sp *space, claim string, v *corev1.PersistentVolume) {
	t.Helper()
	require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(sp.name).Delete(t.Context(), claim, metav1.DeleteOptions{}))
	s.volumeGone(t, v)
}

func (s *share) volumeGone(t *testing.T, v *corev1.PersistentVolume) {
	t.Helper()
	await.Until(t, longest, func() string {
		_, err := s.client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{})
		return await.Missing(apierrors.IsNotFound(err), "PersistentVolume %s is there: %v", v.Name, err)
	})
}

// said waits for an event of an object with that name whose text contains want.
func (s *share) said(t *testing.T, namespace, object, reason, want string) {
	t.Helper()
	await.Until(t, longest, func() string {
		events, err := s.client.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		heard := []string{}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object {
				heard = append(heard, e.Reason+" "+e.Message)
				if e.Reason == reason && strings.Contains(e.Message, want) {
					return ""
				}
			}
		}
		return fmt.Sprintf("nobody said %s %q of %s: %q", reason, want, object, heard)
	})
}

func (s *share) testLife(t *testing.T) {
	sp := s.namespace(t, "nfs-life")
	s.nfsClass(sp, "nfs-delete", func(c *storagev1.StorageClass) { c.MountOptions = []string{"nfsvers=4.2"} }, "onDelete", "delete")
	s.nfsClass(sp, "nfs-retain", nil, "onDelete", "retain")
	s.nfsClass(sp, "nfs-policy", func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain) }, "onDelete", "delete")

	s.claimOf(sp, "data", "nfs-delete")
	v, dir := s.directory(t, sp, "data")
	require.Equal(t, nfsPath+"/nfs-life-data-"+v.Name, v.Spec.NFS.Path)
	require.Equal(t, nfsServer, v.Spec.NFS.Server)
	require.Equal(t, []string{"nfsvers=4.2"}, v.Spec.MountOptions)
	require.Equal(t, "64Mi", v.Spec.Capacity.Storage().String())
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, "drwxrwxrwx", info.Mode().String())

	// A new claim with the same name gets another directory, both while the first directory exists and
	// after it is gone.
	s.deleted(t, sp, "data", v)
	require.NoDirExists(t, dir)
	s.claimOf(sp, "data", "flexlvm-nfs")
	second, kept := s.directory(t, sp, "data")
	require.NotEqual(t, dir, kept)
	s.deleted(t, sp, "data", second)
	require.FileExists(t, filepath.Join(s.export, "archived-"+filepath.Base(kept), "file"))
	s.said(t, "default", second.Name, "DirectoryArchived", "archived-"+filepath.Base(kept))
	s.claimOf(sp, "data", "nfs-retain")
	third, dir := s.directory(t, sp, "data")
	require.NotEqual(t, kept, dir)
	s.deleted(t, sp, "data", third)
	require.FileExists(t, filepath.Join(dir, "file"))

	// With Kubernetes' reclaim policy Retain, nothing is changed and the provisioner is not called.
	s.claimOf(sp, "policy", "nfs-policy")
	v, dir = s.directory(t, sp, "policy")
	require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(sp.name).Delete(t.Context(), "policy", metav1.DeleteOptions{}))
	await.Until(t, longest, func() string {
		now, err := s.client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{})
		require.NoError(t, err)
		return await.Missing(now.Status.Phase == corev1.VolumeReleased, "it is %s", now.Status.Phase)
	})
	require.FileExists(t, filepath.Join(dir, "file"))
}

func (s *share) testRefusals(t *testing.T) {
	sp := s.namespace(t, "nfs-refusals")
	s.nfsClass(sp, "nfs-unknown", nil, "archiveOnDelete", "true")
	s.nfsClass(sp, "nfs-elsewhere", nil, "path", "/srv/other")
	s.claimOf(sp, "unknown", "nfs-unknown")
	s.said(t, sp.name, "unknown", "ProvisioningFailed", `unknown parameter "archiveOnDelete"`)
	s.claimOf(sp, "elsewhere", "nfs-elsewhere")
	s.said(t, sp.name, "elsewhere", "ProvisioningFailed", "which has "+nfsServer+":"+nfsPath+", "+nfsServer+":"+nfsReadOnly)
	sp.claim("single", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = ptr("flexlvm-nfs")
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	s.said(t, sp.name, "single", "ProvisioningFailed", "access mode ReadWriteOncePod is not supported")
	require.Equal(t, "3", s.metric(t, nfsPort, "flexlvm_nfs_provisioner_refusals_total"))
}

func (s *share) testExamples(t *testing.T) {
	sp := s.namespace(t, "nfs-examples")
	content, err := os.ReadFile(filepath.Join(s.source, "examples/nfs/storageclass.yaml"))
	require.NoError(t, err)
	require.NoError(t, s.apply(t, strings.ReplaceAll(string(content), "nfs.example.org", nfsServer), "-n", sp.name))
	t.Cleanup(func() {
		require.NoError(t, s.client.StorageV1().StorageClasses().Delete(context.WithoutCancel(t.Context()), "flexlvm-nfs-explained", metav1.DeleteOptions{}))
	})
	v := sp.volumeOf("shared")
	require.Equal(t, []string{"nfsvers=4.2", "hard"}, v.Spec.MountOptions)
	info, err := os.Stat(filepath.Join(s.export, filepath.Base(v.Spec.NFS.Path)))
	require.NoError(t, err)
	require.Equal(t, "dgrwxrws---", strings.Replace(info.Mode().String(), "rwxrwx", "rwxrws", 1))
	require.EqualValues(t, 5000, info.Sys().(*syscall.Stat_t).Gid)
	require.NoError(t, s.client.AppsV1().Deployments(sp.name).Delete(t.Context(), "sharing", metav1.DeleteOptions{}))
	await.Until(t, longest, func() string {
		sp.deletePods(t.Context())
		pods, err := s.client.CoreV1().Pods(sp.name).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		return await.Missing(len(pods.Items) == 0, "%d pods are left", len(pods.Items))
	})
}
