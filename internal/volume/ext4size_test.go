package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The free space that `mke2fs` 1.47 leaves on a device with flexlvm's options, as `dumpe2fs` reports it,
// must hold the volume's size and what the kernel reserves.
func TestExt4DeviceSizeLeavesRoom(t *testing.T) {
	const kept = 16 * MiB // reserved by the kernel
	for _, c := range []struct{ size, device, free Bytes }{
		{160 * MiB, 264 * MiB, 195*MiB + 563*KiB},
		{300 * MiB, 412 * MiB, 340*MiB + 890*KiB},
		{10 * GiB, 10536 * MiB, 10*GiB + 26*MiB + 512*KiB},
		{100 * GiB, 104188 * MiB, 100*GiB + 28*MiB + 798*KiB},
	} {
		device := Spec{FSType: Ext4, Size: c.size}.DeviceSize()
		require.Equal(t, c.device, device, c.size)
		require.GreaterOrEqual(t, c.free, c.size+kept)
	}
}

func TestExt4DeviceSize(t *testing.T) {
	device := func(size Bytes) Bytes { return Spec{FSType: Ext4, Size: size}.DeviceSize() }
	for _, size := range []Bytes{1, 64 * MiB, 300 * MiB, GiB, 10 * GiB, TiB, 100 * TiB, MaxSize} {
		d := device(size)
		require.Zero(t, d%DefaultExtent, size)
		require.GreaterOrEqual(t, d, 256*MiB, "there is a copy of the superblock")
		require.Greater(t, d, size+Ext4JournalSize(size)+ext4Fixed, size)
		require.Less(t, d, size+size/32+1200*MiB, "overhead of %s must stay a few per cent", size)
		require.GreaterOrEqual(t, device(size+1), d, "a larger size never takes less")
	}
	for last, size := Bytes(0), MiB; size < 3*GiB; size += 3*MiB + 5*Block {
		require.GreaterOrEqual(t, device(size), last, size)
		last = device(size)
	}
	require.Equal(t, device(GiB)+LUKSHeader, Spec{FSType: Ext4, Size: GiB, Encrypted: true}.DeviceSize())
	require.NotEqual(t, device(10*GiB), Spec{Size: 10 * GiB}.DeviceSize())
}

func TestExt4JournalIsWholeMiBs(t *testing.T) {
	require.Equal(t, 64*MiB, Ext4JournalSize(MiB))
	require.Equal(t, 513*MiB, Ext4JournalSize(TiB+8*MiB))
}

// `dumpe2fs` lists copies in groups 1, 3, 5, 7, 9, 25 and 27 of 30.
func TestExt4Copies(t *testing.T) {
	require.ElementsMatch(t, []Bytes{1 * Ext4Group, 3 * Ext4Group, 9 * Ext4Group, 27 * Ext4Group, 5 * Ext4Group, 25 * Ext4Group, 7 * Ext4Group}, Ext4Copies(30*Ext4Group))
	require.Equal(t, []Bytes{Ext4Group}, Ext4Copies(minExt4Device))
	require.Empty(t, Ext4Copies(Ext4Group))
	require.ElementsMatch(t, []Bytes{Ext4Group, 3 * Ext4Group}, Ext4Copies(3*Ext4Group+1))
}

func TestParseFSType(t *testing.T) {
	for text, want := range map[string]FSType{"": XFS, "xfs": XFS, "ext4": Ext4} {
		got, err := ParseFSType(OptionFSType, text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"ext3", "EXT4", "xfs "} {
		_, err := ParseFSType(OptionFSType, text)
		require.EqualError(t, err, `fsType "`+text+`": is not a file system that flexlvm makes; it is xfs or ext4`)
	}
	require.Equal(t, "xfs", XFS.String())
	require.Equal(t, "ext4", Ext4.String())
}

// The fsType of the PersistentVolume must match its options.
func TestCheckFSType(t *testing.T) {
	for _, s := range []Spec{{}, {FSType: Ext4}} {
		require.NoError(t, s.CheckFSType("fsType", ""))
		require.NoError(t, s.CheckFSType("fsType", s.FSType.String()))
	}
	require.EqualError(t, Spec{}.CheckFSType("kubernetes.io/fsType", "ext4"), `kubernetes.io/fsType "ext4": is not what the options of the PersistentVolume say: fsType is xfs; let both say the same`)
	require.ErrorContains(t, Spec{FSType: Ext4}.CheckFSType("fsType", "xfs"), "fsType is ext4")
	require.ErrorContains(t, Spec{}.CheckFSType("fsType", "btrfs"), "is not a file system that flexlvm makes")
}

func TestValidateExt4(t *testing.T) {
	s := Spec{Group: "fast", Name: "pvc-1", Size: GiB, Layout: Linear, Kind: Claim, FSType: Ext4, Inodes: 65536}
	require.NoError(t, s.Validate())
	s.Inodes++
	require.EqualError(t, s.Validate(), `inodes "65537": is more than 65536, which is what ext4 has for this size: one for every 16 KiB, whatever its files need; leave it out, ask for more room, or use xfs`)
	s.Inodes, s.Kind = 0, Dataset
	require.EqualError(t, s.Validate(), `fsType "ext4": does not belong to kind dataset, whose replicas are made with xfs; remove it`)
}
