package provision_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/flexlvm/flexlvm/internal/controlplane"
	"github.com/flexlvm/flexlvm/internal/ledger"
	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
)

func directoryParameters(more map[string]string) map[string]string {
	out := map[string]string{"layout": "directory", "directoryPool": "small", "trustPods": "true"}
	maps.Copy(out, more)
	return out
}

// A parameter that does not fit a class of directory volumes is refused by its name.
func TestDirectoryParameters(t *testing.T) {
	p, err := provision.ParseParameters(directoryParameters(map[string]string{"inodes": "10", "reclaim": "immediate", "trim": "never", "door": "csi"}))
	require.NoError(t, err)
	require.True(t, p.TrustPods)
	require.Equal(t, volume.PoolName("flexlvm:small"), p.Pool())
	for name, value := range map[string]string{
		"wipe": "zero", "trim": "daily", "fsType": "ext4", "kind": "dataset", "readBps": "50Mi", "writeIops": "5",
		"thinPool": "thinpool", "stripes": "2", "trustPods": "yes", "directoryPool": "a/b",
	} {
		_, err := provision.ParseParameters(directoryParameters(map[string]string{name: value}))
		require.ErrorContains(t, err, name)
	}
	_, err = provision.ParseParameters(map[string]string{"layout": "directory"})
	require.ErrorContains(t, err, "directoryPool: is required")
	require.ErrorContains(t, err, `trustPods: must be "true" with layout "directory"`)
	_, err = provision.ParseParameters(map[string]string{"trustPods": "true"})
	require.ErrorContains(t, err, `trustPods: belongs to layout "directory"`)
}

// A claim gets a directory volume in the pool of its class. A claim with a data source is refused.
func TestDirectoryClaims(t *testing.T) {
	for _, c := range []struct {
		name string
		of   string // kind of the data source; empty: none
		why  string
	}{
		{name: "from a snapshot", of: "VolumeSnapshot", why: `whose volumes begin empty`},
		{name: "from a claim", of: "PersistentVolumeClaim", why: `whose volumes begin empty`},
		{name: "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newCast(t)
			small := class(func(s *storagev1.StorageClass) { s.Parameters = directoryParameters(nil) })
			b.classes = []*storagev1.StorageClass{small}
			report := ledgertest.Report("node-1", 10*ledgertest.OneGiB)
			report.Status.Pools = append(report.Status.Pools, flexlvmv1.Pool{
				Name: "flexlvm:small", Layout: "directory", UUID: "lv", Size: ledgertest.Quantity(volume.GiB), Free: ledgertest.Quantity(volume.GiB),
				Allocatable: ledgertest.Quantity(volume.GiB), ExtentSize: ledgertest.Quantity(volume.Block),
			})
			b.ledger.Report(report)
			asked := claim(func(o *corev1.PersistentVolumeClaim) {
				o.Spec.Resources.Requests[corev1.ResourceStorage] = ledgertest.Quantity(volume.MiB)
				if c.of != "" {
					o.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: c.of, Name: "source"}
				}
				if c.of == "VolumeSnapshot" {
					group := "snapshot.storage.k8s.io"
					o.Spec.DataSource.APIGroup = &group
				}
			})
			object, _, err := b.provisioner(t).Provision(t.Context(), controller.ProvisionOptions{PVName: "pvc-1", PVC: asked, StorageClass: small, SelectedNodeName: "node-1"})
			if c.why != "" {
				var refusal *controlplane.Refusal
				require.ErrorAs(t, err, &refusal)
				require.ErrorContains(t, err, c.why)
				return
			}
			require.NoError(t, err)
			v, err := persistentvolume.Parse(object)
			require.NoError(t, err)
			require.Equal(t, volume.PoolName("flexlvm:small"), v.Pool())
			require.Equal(t, volume.DirectorySize(volume.MiB, 0), v.Charged)
			require.Equal(t, "small", object.Spec.FlexVolume.Options[volume.OptionDirectoryPool])
			require.NotContains(t, object.Annotations, pv.AnnotationRatio)
			b.ledger.Written(object)
			offer, has := b.ledger.Offer("node-1", volume.Spec{Group: "flexlvm", Layout: volume.Directory, DirectoryPool: "small"})
			require.True(t, has)
			require.Equal(t, volume.GiB-v.Charged, offer.Room)
			_, err = b.ledger.Reserve("node-1", []ledger.Want{{PV: "pvc-2", Spec: volume.Spec{
				Group: "flexlvm", Name: "pvc-2", Size: volume.GiB, Layout: volume.Directory, DirectoryPool: "small", Kind: volume.Claim,
			}}})
			require.ErrorContains(t, err, `directory pool "flexlvm:small" can still promise`)
		})
	}
}
