package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRaw(t *testing.T) {
	s := Spec{Group: "fast", Name: "pvc-1", Size: GiB + Block, Layout: Linear, Kind: Claim, FSType: Raw}
	require.NoError(t, s.Validate())
	require.Equal(t, GiB+DefaultExtent, s.DeviceSize())
	require.Equal(t, ModeBlock, s.FSType.VolumeMode())
	require.Equal(t, ModeFilesystem, Ext4.VolumeMode())
	for want, change := range map[string]func(*Spec){
		`volumeMode "Block": does not belong to kind dataset`: func(s *Spec) { s.Kind = Dataset },
		`inodes "7": does not belong to volumeMode Block`:     func(s *Spec) { s.Inodes = 7 },
	} {
		bad := s
		change(&bad)
		require.ErrorContains(t, bad.Validate(), want)
	}
	encrypted := s
	encrypted.Encrypted = true
	require.NoError(t, encrypted.Validate())
	require.Equal(t, s.DeviceSize()+LUKSHeader, encrypted.DeviceSize())
	require.Equal(t, GiB+DefaultExtent, encrypted.HeldBy(encrypted.DeviceSize()))
	require.NoError(t, s.CheckFSType("fsType", ""))
	require.ErrorContains(t, s.CheckFSType("fsType", "xfs"), "does not belong to volumeMode Block")
}
