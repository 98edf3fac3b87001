//go:build cluster

package provisioner_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// testStolen checks what the account's token cannot do.
func (s *share) testStolen(t *testing.T) {
	stolen, err := kubernetes.NewForConfig(s.as(nfsAccount))
	require.NoError(t, err)
	create := func(name, uid string, source corev1.PersistentVolumeSource, change ...func(*corev1.PersistentVolume)) func(dryRun []string) error {
		v := volumeOfHand(name, source)
		for _, c := range change {
			c(v)
		}
		if uid != "" {
			v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "data", UID: types.UID(uid)}
		}
		return func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	s.refusedSoon(t, "may only create PersistentVolumes of NFS", create("evil", "", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/-evil"}}))
	s.refusedSoon(t, "may only create PersistentVolumes of NFS", create("evil", "", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: "/etc"}}))
	// These names are suffixes of the directory of another's volume. None of them is the volume's own
	// name.
	const (
		own    = "0d3f3a52-93c6-4d4b-8a53-5d0b3f6f4c11"
		theirs = "3b1f0a9e-5c7d-4e2a-9f10-2a4c6e8b0d13"
	)
	directory := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: nfsPath + "/team-a-pvc-b-pvc-" + theirs}}
	for name, uid := range map[string]string{
		"2a4c6e8b0d13":          own, // the end of its UID
		"pvc-" + theirs:         own, // once its PersistentVolume is gone
		"b-pvc-" + theirs:       theirs,
		"pvc-b-pvc-" + theirs:   "b-pvc-" + theirs, // not a UID
		theirs:                  theirs,
		"a-pvc-b-pvc-" + theirs: "",
	} {
		s.refusedSoon(t, "may only create PersistentVolumes for the claim whose UID is in their name", create(name, uid, directory))
	}
	require.NoError(t, create("pvc-"+theirs, theirs, directory)([]string{metav1.DryRunAll}), "as the provisioner does")
	for _, server := range []string{"--fstab=/var/lib/x", "/var/lib/kubelet/pods/x", "x/y"} {
		option := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: directory.NFS.Path}}
		s.refusedSoon(t, "may only create PersistentVolumes whose server is a host", create("pvc-"+theirs, theirs, option))
	}
	mounted := func(options ...string) func(dryRun []string) error {
		return create("pvc-"+theirs, theirs, directory, func(v *corev1.PersistentVolume) { v.Spec.MountOptions = options })
	}
	for _, options := range [][]string{{"bind"}, {"hard", "nfsvers=4.2,rbind"}, {"move"}, {"remount"}, {"bind="}, {"loop"}, {"X-mount.subdir=/etc"}, {"hard,X-mount.subdir=../../../etc"}} {
		s.refusedSoon(t, "with plain NFS mount options", mounted(options...))
	}
	for _, annotation := range []string{"volume.beta.kubernetes.io/mount-options", "pv.kubernetes.io/migrated-to"} {
		s.refusedSoon(t, "with its own annotations", create("pvc-"+theirs, theirs, directory, func(v *corev1.PersistentVolume) {
			v.Annotations[annotation] = "bind"
		}))
	}
	s.refusedSoon(t, "with the reclaim policy Delete or Retain", create("pvc-"+theirs, theirs, directory, func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRecycle
	}))
	require.NoError(t, mounted("nfsvers=4.2,hard", "timeo=600")([]string{metav1.DryRunAll}), "as a class says")

	v := volumeOfHand("evil", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}})
	_, err = s.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{})
	require.NoError(t, err)
	s.refusedSoon(t, "may only delete PersistentVolumes that it created", func(dryRun []string) error {
		return stolen.CoreV1().PersistentVolumes().Delete(t.Context(), "evil", metav1.DeleteOptions{DryRun: dryRun})
	})
	require.NoError(t, s.client.CoreV1().PersistentVolumes().Delete(t.Context(), "evil", metav1.DeleteOptions{}))
	s.testStolenChanges(t, stolen)
}

// testStolenChanges: of its own PersistentVolumes, the account can change only its finalizer.
func (s *share) testStolenChanges(t *testing.T, stolen kubernetes.Interface) {
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: nfsServer, Path: nfsPath + "/bait"}}
	foreign := volumeOfHand("foreign", nfs)
	foreign.Annotations = nil
	for _, v := range []*corev1.PersistentVolume{volumeOfHand("made", nfs), foreign} {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		_, err := s.client.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	patch := func(name, patch string) func(dryRun []string) error {
		return func(dryRun []string) error {
			_, err := stolen.CoreV1().PersistentVolumes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
			return err
		}
	}
	finalizer := fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, nfsFinalizer)
	for _, change := range []string{
		`{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"annotations":{"nfs.flexlvm.io/on-delete":"archive"}}}`,
		`{"metadata":{"finalizers":["example.org/another"]}}`,
		`{"metadata":{"$deleteFromPrimitiveList/finalizers":["kubernetes.io/pv-protection"]}}`,
		`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`,
	} {
		s.refusedSoon(t, "may only change the finalizer of a PersistentVolume that it created", patch("made", change))
	}
	s.refusedSoon(t, "may only change the finalizer of a PersistentVolume that it created", patch("foreign", finalizer))
	s.refusedSoon(t, "may not change the owners of a PersistentVolume", patch("made", nobodysChild))
	require.NoError(t, patch("made", finalizer)(nil))
	require.NoError(t, patch("made", fmt.Sprintf(`{"metadata":{"$deleteFromPrimitiveList/finalizers":[%q]}}`, nfsFinalizer))(nil))
	for _, name := range []string{"made", "foreign"} {
		require.NoError(t, s.client.CoreV1().PersistentVolumes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
}
