package nfs

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/nfsmark"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// serverWith makes the server report 10 GiB for the export, and the result of directory for a directory in it.
func (r *rig) serverWith(directory func() volume.Bytes) {
	r.room = func(dir *os.File) (room, error) {
		if _, err := os.Stat(filepath.Join(dir.Name(), "precious")); err == nil {
			return room{10 * volume.GiB, volume.MiB}, nil
		}
		return room{directory(), volume.MiB}, nil
	}
}

func (r *rig) enforced(size string) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	claim := claimOf(corev1.ReadWriteMany)
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
	return r.Provision(r.t.Context(), controller.ProvisionOptions{PVName: pvName, PVC: claim, StorageClass: classOf(r.Exports[1], "enforceSize", "true")})
}

// later makes an attempt to provision run out of time after its first check.
func (r *rig) later() {
	r.Now = func() time.Time { return time.Now().Add(time.Duration(r.looks.Add(1)) * time.Hour) }
}

// A volume with enforceSize is published only when the server reports its size, whoever has set the limit.
func TestEnforcedSize(t *testing.T) {
	r := newRig(t)
	var asked atomic.Int64
	r.serverWith(func() volume.Bytes {
		if asked.Add(1) < 3 {
			return 10 * volume.GiB
		}
		return 3 * volume.GiB
	})
	v, state, err := r.enforced("3Gi")
	require.NoError(t, err)
	require.Equal(t, controller.ProvisioningFinished, state)
	require.EqualValues(t, 3, asked.Load(), "it waits for the server")
	require.Equal(t, map[string]string{AnnotationOnDelete: "archive", AnnotationEnforceSize: "true"}, v.Annotations)
	root, err := os.OpenRoot(r.Exports[1].Dir)
	require.NoError(t, err)
	defer root.Close()
	m, marked, err := nfsmark.Read(root, pvName)
	require.NoError(t, err)
	require.True(t, marked)
	require.Equal(t, nfsmark.Mark{Directory: "team-data-" + pvName, PersistentVolume: pvName, Claim: "team/data", Cluster: "here", Size: 3 * volume.GiB}, m)

	v, _ = r.provisioned()
	require.NotContains(t, v.Annotations, AnnotationEnforceSize)
}

// A class may be created again with another enforceSize while a claim waits. The mark, from which the server learns
// the size, is updated.
func TestMarkFollowsTheClass(t *testing.T) {
	r := newRig(t)
	r.provisioned()
	marked := func() nfsmark.Mark {
		root, err := os.OpenRoot(r.Exports[1].Dir)
		require.NoError(t, err)
		defer root.Close()
		m, marked, err := nfsmark.Read(root, pvName)
		require.NoError(t, err)
		require.True(t, marked)
		return m
	}
	require.Zero(t, marked().Size)
	r.serverWith(func() volume.Bytes { return marked().Size })
	_, state, err := r.enforced("3Gi")
	require.NoError(t, err)
	require.Equal(t, controller.ProvisioningFinished, state)
	require.Equal(t, nfsmark.Mark{Directory: "team-data-" + pvName, PersistentVolume: pvName, Claim: "team/data", Cluster: "here", Size: 3 * volume.GiB}, marked())
	r.provisioned()
	require.Zero(t, marked().Size, "and it is not held any more")
}

// Only the attempt that writes the mark waits for the server. Otherwise claims whose sizes nobody enforces would
// occupy the workers.
func TestSizeIsAwaitedOnce(t *testing.T) {
	r := newRig(t)
	var asked atomic.Int64
	r.serverWith(func() volume.Bytes {
		asked.Add(1)
		return 10 * volume.GiB
	})
	r.Now = func() time.Time { // the time ends with the third check
		if asked.Load() < 3 {
			return time.Time{}
		}
		return time.Time{}.Add(time.Hour)
	}
	for _, looks := range []int64{3, 1, 1} {
		asked.Store(0)
		_, state, err := r.enforced("3Gi")
		require.ErrorContains(t, err, "is not held to its size yet")
		require.Equal(t, controller.ProvisioningInBackground, state)
		require.Equal(t, looks, asked.Load())
	}
}

// The size of some file systems changes with their use. A directory whose size is that of the whole export has no
// limit, whatever that size is at the moment.
func TestSizeOfAnExportThatChanges(t *testing.T) {
	for name, c := range map[string]struct {
		directory, after volume.Bytes
		says             string
	}{
		"a limit":                         {3 * volume.GiB, 9 * volume.GiB, ""},
		"none, as the export grows less":  {3 * volume.GiB, 3 * volume.GiB, "size 3 GiB is not less than the 3 GiB"},
		"none, and a little room is left": {3*volume.GiB + volume.MiB, 3*volume.GiB + volume.MiB, "is not held to its size yet"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.later()
			whole := 10 * volume.GiB
			r.room = func(dir *os.File) (room, error) {
				if filepath.Base(dir.Name()) == "." {
					return room{whole, 2 * volume.MiB}, nil
				}
				whole = c.after
				return room{c.directory, 2 * volume.MiB}, nil
			}
			size := "3Gi"
			if c.directory > 3*volume.GiB {
				size = "3221225473" // less than the export has, but more in the client's units
			}
			_, _, err := r.enforced(size)
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestSizeThatIsNotEnforced(t *testing.T) {
	r := newRig(t)
	r.later()
	has := 10 * volume.GiB
	r.serverWith(func() volume.Bytes { return has })
	_, state, err := r.enforced("3Gi")
	require.ErrorContains(t, err, "is not held to its size yet: the server offers 10 GiB in it, and the claim is for 3 GiB")
	require.Equal(t, controller.ProvisioningInBackground, state, "the directory is there")
	_, state, err = r.enforced("10Gi") // as if the export had become smaller
	require.ErrorContains(t, err, "is not less than the 10 GiB")
	require.Equal(t, controller.ProvisioningInBackground, state, "and it is there still")
	require.NoError(t, errors.Join(os.Remove(filepath.Join(r.Exports[1].Dir, "team-data-"+pvName)), os.RemoveAll(filepath.Join(r.Exports[1].Dir, nfsmark.Dir))))
	r.gate(place{export: r.Exports[1]}).used.Store(false) // as if this process had made nothing there
	_, state, err = r.enforced("10Gi")
	require.Equal(t, controller.ProvisioningNoChange, state)
	require.NoDirExists(t, filepath.Join(r.Exports[1].Dir, nfsmark.Dir), "nothing is made")
	require.ErrorContains(t, err, "size 10 GiB is not less than the 10 GiB that the export has in all")
	has = 4 * volume.MiB // the client counts in its own units
	_, _, err = r.enforced("3200Ki")
	require.NoError(t, err)
	has = 5 * volume.MiB
	_, _, err = r.enforced("3200Ki")
	require.ErrorContains(t, err, "the server offers 5 MiB")

	_, state, err = r.enforced("511Ki")
	var refusal *controlplane.Refusal
	require.ErrorAs(t, err, &refusal)
	require.ErrorContains(t, err, "ask for 512 KiB or more")
	require.Equal(t, controller.ProvisioningFinished, state)

	r.room = roomOf // on this machine nothing enforces sizes
	_, _, err = r.enforced("1Mi")
	require.ErrorContains(t, err, "is not held to its size yet")
}
