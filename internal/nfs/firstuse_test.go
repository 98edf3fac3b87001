package nfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/pv"
)

const otherPV = "pvc-1d3f8f6e-6a0d-4e8f-b6a4-6bd5cb2b4a53"

// provision creates a volume in the second export.
func (r *rig) provision(name string) (controller.ProvisioningState, error) {
	r.t.Helper()
	_, state, err := r.Provision(r.t.Context(), controller.ProvisionOptions{
		PVName: name, PVC: claimOf(corev1.ReadWriteMany), StorageClass: classOf(r.Exports[1], "onDelete", "delete"),
	})
	return state, err
}

// provisionedBy returns the PersistentVolume of a directory in the second export that a provisioner has created.
func provisionedBy(provisioner string) *corev1.PersistentVolume {
	v := volumeAt("b", "/srv/team-data-"+otherPV)
	v.Name, v.Annotations = otherPV, map[string]string{pv.AnnotationProvisionedBy: provisioner}
	return v
}

// isEmpty checks that nothing was created in the second export.
func (r *rig) isEmpty() {
	r.t.Helper()
	names, err := os.ReadDir(r.Exports[1].Dir)
	require.NoError(r.t, err)
	require.Len(r.t, names, 1)
	require.Equal(r.t, "precious", names[0].Name())
}

// The server exports the directory below its disk. Neither is a new volume created there, nor is a directory that
// cannot be seen there taken for one that was disposed of.
func TestDiskThatTheServerHasNotMounted(t *testing.T) {
	r := newRig(t)
	v := provisionedBy(Name)
	r.listed = []*corev1.PersistentVolume{v}
	for range 3 {
		state, err := r.provision(pvName)
		require.ErrorIs(t, err, nfsmark.ErrNone)
		require.ErrorContains(t, err, "check that its server has mounted the disk")
		require.Equal(t, controller.ProvisioningNoChange, state)
		r.isEmpty()
	}
	require.Equal(t, 1, r.lists, "the answer lasts")
	v.UID, v.Status.Phase = "u1", corev1.VolumeReleased
	v.Annotations[AnnotationOnDelete] = string(Remove)
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	r.now = v
	require.ErrorIs(t, r.Delete(t.Context(), v), nfsmark.ErrNone)

	// The disk is mounted, or somebody has restored the export without hidden files.
	require.NoError(t, os.Mkdir(filepath.Join(r.Exports[1].Dir, nfsmark.Dir), 0o700))
	_, err := r.provision(pvName)
	require.NoError(t, err)
}

// Velero restores a PersistentVolume without the annotation of its provisioner.
func TestUnmountedDiskOfARestoredVolume(t *testing.T) {
	r := newRig(t)
	v := provisionedBy("")
	v.Annotations = map[string]string{AnnotationOnDelete: string(Archive)}
	r.listed = []*corev1.PersistentVolume{v}
	_, err := r.provision(pvName)
	require.ErrorIs(t, err, nfsmark.ErrNone)
	r.isEmpty()
}

// Volumes elsewhere, and volumes of others, do not keep the provisioner from an export's first use.
func TestFirstVolumeOfAnExport(t *testing.T) {
	r := newRig(t)
	elsewhere := volumeAt("a", "/srv/team-data-"+pvName)
	elsewhere.Annotations = map[string]string{pv.AnnotationProvisionedBy: Name}
	others := volumeAt("b", "/srv/precious")
	others.Name = "precious"
	r.listed = []*corev1.PersistentVolume{elsewhere, others, provisionedBy("cluster.local/nfs-subdir-external-provisioner"), {}}
	_, err := r.provision(pvName)
	require.NoError(t, err)
	_, err = r.provision(otherPV)
	require.NoError(t, err)
	require.Equal(t, 1, r.lists)
}

// The PersistentVolume of a directory that was just made may not exist yet.
func TestDiskThatIsUnmountedAfterTheFirstVolume(t *testing.T) {
	r := newRig(t)
	_, err := r.provision(pvName)
	require.NoError(t, err)
	for _, name := range []string{nfsmark.Dir, "team-data-" + pvName} {
		require.NoError(t, os.RemoveAll(filepath.Join(r.Exports[1].Dir, name)))
	}
	_, err = r.provision(otherPV)
	require.ErrorIs(t, err, nfsmark.ErrNone)
	r.isEmpty()
}

func TestFirstVolumesAtTheSameTime(t *testing.T) {
	r := newRig(t)
	r.onList = func() error {
		r.onList = nil
		_, err := r.provision(otherPV)
		return err
	}
	_, err := r.provision(pvName)
	require.NoError(t, err)
	require.DirExists(t, filepath.Join(r.Exports[1].Dir, "team-data-"+pvName))
	require.DirExists(t, filepath.Join(r.Exports[1].Dir, "team-data-"+otherPV))
}

func TestFirstVolumeWithoutTheAPIServer(t *testing.T) {
	r := newRig(t)
	r.onList = func() error { return errors.New("away") }
	state, err := r.provision(pvName)
	require.ErrorContains(t, err, "check whether volumes lie in export b:/srv, which has no marks: away")
	require.Equal(t, controller.ProvisioningNoChange, state)
	r.isEmpty()
	r.onList = nil
	_, err = r.provision(pvName)
	require.NoError(t, err)
}

// While the first use of an export fails, not every attempt lists all PersistentVolumes.
func TestFailingFirstVolumes(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	r.gates[r.Exports[1].String()] = newGate(r.Exports[1], time.Minute, 1, func() time.Time { return now })
	attempt := func(says string) {
		t.Helper()
		_, err := r.provision(pvName)
		require.ErrorContains(t, err, says)
	}
	r.onList = func() error { return errors.New("away") }
	attempt("away")
	attempt("away")
	require.Equal(t, 2, r.lists, "a list that failed shows nothing")
	r.onList = nil
	require.NoError(t, os.Mkdir(filepath.Join(r.Exports[1].Dir, "team-data-"+pvName), 0o700))
	for range 3 {
		attempt("exists already")
	}
	require.Equal(t, 3, r.lists)
	r.listed = []*corev1.PersistentVolume{provisionedBy(Name)}
	now = now.Add(unusedFor)
	attempt("check that its server has mounted the disk")
	require.Equal(t, 4, r.lists)
}
