package undelete_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/inventory"
	"github.com/flexlvm/flexlvm/internal/pv"
	"github.com/flexlvm/flexlvm/internal/undelete"
	"github.com/flexlvm/flexlvm/internal/volume"
)

func released() inventory.Volume {
	return inventory.Volume{
		Group: "flexlvm", GroupUUID: "XfRyGj-cHcy-OLJ6-2YcS-mIbZ-wNzT-CB1y3S", Name: "pvc-3", State: volume.Unreferenced, Size: volume.GiB,
		Allocated: 1148 * volume.MiB, AllocatedWhenFull: 1200 * volume.MiB, FS: "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", Namespace: "shop", Kind: volume.Claim,
		Shape: volume.Shape{Layout: volume.Linear},
	}
}

func TestManifest(t *testing.T) {
	m, err := undelete.Manifest(released(), undelete.Request{
		Node: "node-1", Hostname: "host-1", Claim: "data", Class: "fast", Policy: "Retain", Door: pv.CSI, Inodes: 5000,
		OnNodeLoss: volume.OnNodeLossRelease, IOLimits: volume.IOLimits{ReadIOPS: 100}, Trim: volume.TrimNever, MountOptions: []volume.MountOption{volume.NoAtime},
	})
	require.NoError(t, err)
	require.Equal(t, "0f3c9a52-3b0a-4c58-9f3e-1f0b7f6f2a11", m.Options()[volume.OptionFS], "so no empty volume takes its place")
	require.Equal(t, "5000", m.Options()[volume.OptionInodes])
	require.Equal(t, 1200*volume.MiB, m.Charged)
	require.Equal(t, volume.Disposal{Reclaim: volume.ReclaimLazy, Wipe: volume.WipeNone}, m.Disposal)
	require.Equal(t, "shop/data", m.Namespace+"/"+m.Claim)
	require.Equal(t, volume.OnNodeLossRelease, m.OnNodeLoss)
	require.Equal(t, "never", m.Annotations()[pv.AnnotationTrim])

	m, err = undelete.Manifest(released(), undelete.Request{Node: "node-1", Hostname: "node-1", Policy: "Retain"})
	require.NoError(t, err)
	require.Equal(t, "pvc-3", m.Claim)
	require.Equal(t, volume.OnNodeLossKeep, m.OnNodeLoss)

	odd := released()
	odd.Name = "My_Data"
	_, err = undelete.Manifest(odd, undelete.Request{})
	require.ErrorContains(t, err, "lvrename flexlvm My_Data NEW")
	odd = released()
	odd.Size = 0
	_, err = undelete.Manifest(odd, undelete.Request{})
	require.ErrorContains(t, err, "restore volume flexlvm/pvc-3")
}

func TestManifestOfAnEncryptedVolume(t *testing.T) {
	v, secret := released(), pv.SecretRef{Namespace: "keys", Name: "disk-key"}
	_, err := undelete.Manifest(v, undelete.Request{Secret: secret})
	require.ErrorContains(t, err, "is not encrypted")
	v.Encrypted = true
	_, err = undelete.Manifest(v, undelete.Request{Door: pv.CSI})
	require.ErrorContains(t, err, "--secret NAMESPACE/NAME")
	_, err = undelete.Manifest(v, undelete.Request{Secret: secret, Door: pv.Flex})
	require.ErrorContains(t, err, "--door csi")
	m, err := undelete.Manifest(v, undelete.Request{Secret: secret, Door: pv.CSI})
	require.NoError(t, err)
	require.Equal(t, "true", m.Options()[volume.OptionEncrypted])
	require.Equal(t, pv.Secrets{Publish: secret, Expand: secret}, m.Secrets)
}

func TestManifestOfAnExt4Volume(t *testing.T) {
	v := released()
	v.FSType = volume.Ext4
	for _, door := range []pv.Door{pv.Flex, pv.CSI} {
		m, err := undelete.Manifest(v, undelete.Request{Door: door})
		require.NoError(t, err)
		require.Equal(t, "ext4", m.Options()[volume.OptionFSType])
		require.Contains(t, m.YAML(), "    fsType: ext4\n")
		require.Contains(t, m.YAML(), `      fsType: "ext4"`)
	}
}

func TestManifestOfARawBlockVolume(t *testing.T) {
	v := released()
	v.FSType = volume.Raw
	_, err := undelete.Manifest(v, undelete.Request{Door: pv.Flex})
	require.ErrorContains(t, err, "--door csi")
	m, err := undelete.Manifest(v, undelete.Request{Door: pv.CSI})
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(m.YAML(), "\n  volumeMode: Block\n"), "of the PersistentVolume and of the claim")
	require.Contains(t, m.YAML(), `      volumeMode: "Block"`)
	require.NotContains(t, m.YAML(), "fsType")
}

// kubelet passes no mount options to FlexVolume drivers, and does not mount a FlexVolume that has some.
func TestManifestOfAVolumeWithMountOptions(t *testing.T) {
	w := undelete.Request{MountOptions: []volume.MountOption{volume.NoAtime}}
	for _, door := range []pv.Door{"", pv.Flex} {
		w.Door = door
		_, err := undelete.Manifest(released(), w)
		require.ErrorContains(t, err, "volume flexlvm/pvc-3 had the mount options [noatime], which only the CSI driver supports; set --door csi")
	}
	w.Door = pv.CSI
	_, err := undelete.Manifest(released(), w)
	require.NoError(t, err)
}

func TestCheckRestorable(t *testing.T) {
	require.NoError(t, undelete.CheckRestorable(released()))
	for says, change := range map[string]func(*inventory.Volume){
		"is an unfinished copy":   func(v *inventory.Volume) { v.CloneOfFS = "x" },
		"completely zeroed":       func(v *inventory.Volume) { v.PartlyZeroed = true },
		"is a replica":            func(v *inventory.Volume) { v.Kind = volume.Dataset },
		"its first mount was":     func(v *inventory.Volume) { v.State = volume.Creating },
		"pvc-3 is in state creat": func(v *inventory.Volume) { v.State, v.CloneOfFS = volume.Creating, "x" },
	} {
		v := released()
		change(&v)
		require.ErrorContains(t, undelete.CheckRestorable(v), says)
	}
}
