package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// The PersistentVolume has ext4 in both places, and its charge is that of ext4.
func TestPersistentVolumeWithExt4(t *testing.T) {
	for door, parameter := range map[pv.Door]string{pv.Flex: "fsType", pv.CSI: "csi.storage.k8s.io/fstype"} {
		request := provision.Request{PVName: pvName, Claim: claim(nil), Cluster: ledgertest.Cluster, Door: door, Class: class(func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{parameter: "ext4"}
		})}
		spec, parameters, err := request.Check()
		require.NoError(t, err)
		got := request.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
		require.Equal(t, decimal(volume.Spec{Size: volume.GiB, FSType: volume.Ext4}.DeviceSize()), got.Annotations["flexlvm.io/charged-bytes"])
		if door == pv.CSI {
			require.Equal(t, "ext4", got.Spec.CSI.FSType)
			require.Equal(t, "ext4", got.Spec.CSI.VolumeAttributes["fsType"])
		} else {
			require.Equal(t, "ext4", got.Spec.FlexVolume.FSType)
			require.Equal(t, "ext4", got.Spec.FlexVolume.Options["fsType"])
		}
		parsed, err := persistentvolume.Parse(got)
		require.NoError(t, err)
		require.Equal(t, volume.Ext4, parsed.FSType)
		require.Equal(t, volume.Spec{Size: 3 * volume.GiB, FSType: volume.Ext4}.DeviceSize(), parsed.DeviceSize(3*volume.GiB), "what it takes when it grows")
	}
}
