package provision_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/flexlvm/flexlvm/internal/ledger/ledgertest"
	"github.com/flexlvm/flexlvm/internal/persistentvolume"
	"github.com/flexlvm/flexlvm/internal/provision"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func asBlock(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(corev1.PersistentVolumeBlock) }

// A raw block volume is charged for the requested size in whole extents, and its PersistentVolume has the volume mode
// in the spec and in the attributes.
func TestBlock(t *testing.T) {
	r := provision.Request{
		PVName: pvName, Cluster: ledgertest.Cluster,
		Claim: claim(func(c *corev1.PersistentVolumeClaim) {
			asBlock(c)
			sized("1000000001")(c)
		}),
		Class: class(func(c *storagev1.StorageClass) {
			c.Parameters = map[string]string{"door": "csi", "layout": "thin", "thinPool": "thinpool"}
		}),
	}
	spec, parameters, err := r.Check()
	require.NoError(t, err)
	object := r.PersistentVolume(spec, parameters, provision.Node{Name: "node-1", Hostname: "host-1"})
	require.Equal(t, corev1.PersistentVolumeBlock, *object.Spec.VolumeMode)
	require.EqualValues(t, 1000001536, object.Spec.Capacity.Storage().Value(), "whole blocks")
	require.Empty(t, object.Spec.CSI.FSType)
	require.Equal(t, "Block", object.Spec.CSI.VolumeAttributes["volumeMode"])
	require.NotContains(t, object.Spec.CSI.VolumeAttributes, "fsType")
	require.Equal(t, decimal(volume.Bytes(1000001536).RoundUp(4*volume.MiB)), object.Annotations["flexlvm.io/charged-bytes"])
	c, err := persistentvolume.Parse(object)
	require.NoError(t, err)
	require.Equal(t, volume.Raw, c.FSType)
}

func TestBlockIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		class func(*storagev1.StorageClass)
		err   string
	}{
		"with a file system": {
			class: func(c *storagev1.StorageClass) {
				c.Parameters = map[string]string{"door": "csi", "csi.storage.k8s.io/fstype": "xfs", "trim": "daily"}
				c.MountOptions = []string{"noatime"}
			},
			err: `csi.storage.k8s.io/fstype "xfs" of StorageClass "flexlvm" does not belong to volumeMode Block, which has no file system; use a class without it; ` +
				`trim "daily" of StorageClass "flexlvm" does not belong to volumeMode Block, where only the pod knows what it does not use; use a class without it; ` +
				`mountOptions of StorageClass "flexlvm" do not belong to volumeMode Block, which is not mounted; use a class without them`,
		},
		"with inodes": {
			class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"door": "csi", "inodes": "5000"} },
			err:   `inodes "5000": does not belong to volumeMode Block, which has no file system; use a class without it`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := provision.Request{PVName: pvName, Claim: claim(asBlock), Class: class(tt.class), Cluster: ledgertest.Cluster}.Check()
			require.EqualError(t, err, tt.err)
		})
	}
}
