//go:build cluster

package provisioner_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/flexlvm/flexlvm/test/await"
)

func (s *share) testRemovedByHand(t *testing.T) {
	sp := s.namespace(t, "nfs-by-hand")
	s.claimOf(sp, "data", "flexlvm-nfs")
	v, dir := s.directory(t, sp, "data")
	require.NoError(t, os.RemoveAll(dir))
	s.deleted(t, sp, "data", v)
	s.said(t, "default", v.Name, "DirectoryMissing", "was not there any more")
}

// testDeletedByHand: a PersistentVolume is deleted before its claim.
func (s *share) testDeletedByHand(t *testing.T) {
	sp := s.namespace(t, "nfs-deleted-by-hand")
	s.claimOf(sp, "data", "flexlvm-nfs")
	v, dir := s.directory(t, sp, "data")
	require.Contains(t, v.Finalizers, nfsFinalizer)
	require.NoError(t, s.client.CoreV1().PersistentVolumes().Delete(t.Context(), v.Name, metav1.DeleteOptions{}))
	s.deleted(t, sp, "data", v)
	require.FileExists(t, filepath.Join(s.export, "archived-"+filepath.Base(dir), "file"))

	// The directory is disposed of once, even if Kubernetes' own finalizer is removed after flexlvm's.
	events, err := s.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + v.Name})
	require.NoError(t, err)
	for _, e := range events.Items {
		require.NotEqual(t, "DirectoryMissing", e.Reason, e.Message)
	}

	s.nfsClass(sp, "nfs-kept", func(c *storagev1.StorageClass) { c.ReclaimPolicy = ptr(corev1.PersistentVolumeReclaimRetain) })
	s.claimOf(sp, "kept", "nfs-kept")
	v, dir = s.directory(t, sp, "kept")
	await.Until(t, longest, func() string {
		now, err := s.client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{})
		require.NoError(t, err)
		return await.Missing(!slices.Contains(now.Finalizers, nfsFinalizer), "nobody is to dispose of its directory, and it has the finalizer")
	})
	require.NoError(t, s.client.CoreV1().PersistentVolumes().Delete(t.Context(), v.Name, metav1.DeleteOptions{}))
	s.deleted(t, sp, "kept", v)
	require.FileExists(t, filepath.Join(dir, "file"))
}

func (s *share) testReadOnly(t *testing.T) {
	sp := s.namespace(t, "nfs-read-only")
	s.nfsClass(sp, "nfs-read-only", nil, "path", nfsReadOnly)
	s.claimOf(sp, "data", "nfs-read-only")
	s.said(t, sp.name, "data", "ProvisioningFailed", "the export is read-only; export it rw (exports(5)); it is retried")
	dir := strings.TrimPrefix(s.flags[1], "--export="+nfsServer+":"+nfsReadOnly+"=")
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""))
	v := sp.volumeOf("data")
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(sp.name).Delete(t.Context(), "data", metav1.DeleteOptions{}))
	s.said(t, "default", v.Name, "VolumeFailedDelete", "the export is read-only")
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT, ""))
	s.volumeGone(t, v)
}

// testPlanted: a writer of the export replaces a volume's directory by links to other places.
func (s *share) testPlanted(t *testing.T) {
	sp := s.namespace(t, "nfs-planted")
	s.nfsClass(sp, "nfs-planted", nil, "onDelete", "delete")
	for claim, to := range map[string]string{"beside": "bait", "out": "/etc", "up": ".."} {
		s.claimOf(sp, claim, "nfs-planted")
		v, dir := s.directory(t, sp, claim)
		aside := filepath.Join(s.export, claim+"-aside")
		require.NoError(t, os.Rename(dir, aside))
		require.NoError(t, os.Symlink(to, dir))
		require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(sp.name).Delete(t.Context(), claim, metav1.DeleteOptions{}))
		s.said(t, "default", v.Name, "VolumeFailedDelete", "is not a directory")
		// After the repair, the deletion continues. A retry in the middle of it would find nothing.
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE))
		require.NoError(t, os.Remove(aside))
		s.volumeGone(t, v)
		require.NoDirExists(t, dir)
	}
}

// testMadeByHand: a forged PersistentVolume that claims to be the provisioner's gives access to nothing
// else.
func (s *share) testMadeByHand(t *testing.T) {
	for name, path := range map[string]string{
		"pvc-00000000-0000-4000-8000-000000000001": nfsPath + "/bait",
		"pvc-00000000-0000-4000-8000-000000000002": nfsPath + "/x/../bait",
		"pvc-00000000-0000-4000-8000-000000000003": nfsPath,
		"bait": nfsPath + "/archived-bait",
	} {
		v := volumeOfHand(name, corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: path}})
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "never", UID: "never"}
		_, err := s.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{})
		if path == nfsPath+"/x/../bait" && err != nil {
			continue // the API server itself may refuse it
		}
		require.NoError(t, err)
		s.said(t, "default", name, "VolumeFailedDelete", "delete the directory: ")
		require.NoError(t, s.client.CoreV1().PersistentVolumes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}

// testKilled: a provisioner that is killed at any moment leaves nothing behind.
func (s *share) testKilled(t *testing.T) {
	sp := s.namespace(t, "nfs-killed")
	s.nfsClass(sp, "nfs-killed", nil, "onDelete", "delete")
	before, err := s.exported()
	require.NoError(t, err)
	var due, done atomic.Int32 // counts of kills
	due.Store(1)
	killed := func(p *process) {
		began, _ := s.exported()
		go func() {
			for now := began; due.Load() > 0 && now == began; now, _ = s.exported() {
				time.Sleep(time.Millisecond)
			}
			if due.Add(-1) >= 0 {
				p.kill() // in the middle of its first work
				done.Add(1)
			}
		}()
	}
	stop := s.keep(t, nfsPort, killed)
	for i := range 20 {
		s.claimOf(sp, fmt.Sprintf("c-%d", i), "nfs-killed")
	}
	var dir string
	for i := range 20 {
		_, dir = s.directory(t, sp, fmt.Sprintf("c-%d", i))
		for file := range 1500 { // more than are removed in one step
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(file)), nil, 0o600))
		}
	}
	await.Until(t, longest, func() string { return await.Missing(done.Load() == 1, "nothing was killed") })
	stop()
	due.Store(1)
	release := undeletable(t, filepath.Join(dir, "0")) // so that the kill comes before all is done
	stop = s.keep(t, nfsPort, killed)
	require.NoError(t, s.client.CoreV1().PersistentVolumeClaims(sp.name).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	await.Until(t, longest, func() string { return await.Missing(done.Load() == 2, "nothing was killed") })
	require.NotEmpty(t, sp.volumes(t.Context()))
	release()
	await.Until(t, longest, func() string {
		left := sp.volumes(t.Context())
		return await.Missing(len(left) == 0, "%d volumes are left", len(left))
	})
	stop()
	after, err := s.exported()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// exported lists the directories of the export and their marks.
func (s *share) exported() (string, error) {
	out := ""
	for _, dir := range []string{"", ".flexlvm"} {
		entries, err := os.ReadDir(filepath.Join(s.export, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // nothing was marked yet
			return "", err
		}
		for _, e := range entries {
			out += filepath.Join(dir, e.Name()) + "\n"
		}
	}
	return out, nil
}

// undeletable keeps a file from being deleted, even after a rename, until release is called.
func undeletable(t *testing.T, path string) (release func()) {
	t.Helper()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	file, err := os.Open(path)
	require.NoError(t, err)
	set := func(flags int) error {
		return unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags)
	}
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	require.NoError(t, err)
	require.NoError(t, set(flags|immutable))
	release = sync.OnceFunc(func() {
		defer func() { _ = file.Close() }()
		require.NoError(t, set(flags))
	})
	t.Cleanup(release)
	return release
}
