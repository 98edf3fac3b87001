package volume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDirectoryCharge(t *testing.T) {
	for _, c := range []struct {
		size   Bytes
		inodes int64
		want   Bytes
	}{
		{512 * KiB, 0, 564 * KiB}, // 64 inodes
		{512*KiB - 1, 0, 564 * KiB},
		{512 * KiB, 1, 532 * KiB},
		{GiB, 0, GiB + 34*MiB + 16*KiB},
	} {
		s := Spec{Group: "g", Name: "pvc", Size: c.size, Layout: Directory, DirectoryPool: "small", Inodes: c.inodes, Kind: Claim}
		require.Equal(t, c.want, s.Charge(), "%d", c.size)
		require.Equal(t, c.want, s.ChargeIn(Block))
		require.Equal(t, PoolName("g:small"), s.Pool())
		require.Equal(t, c.size.RoundUp(Block), s.HeldBy(c.want))
	}
	class := Spec{Group: "g", Layout: Directory, DirectoryPool: "small"}
	most := Largest([]Bytes{GiB}, class, Block)
	require.LessOrEqual(t, DirectorySize(most, 0), GiB)
	require.Greater(t, DirectorySize(most+Block, 0), GiB)
}

func TestDirectoryPoolTags(t *testing.T) {
	pool := DirectoryPool{State: Ready, FS: "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01", Size: GiB}
	got, err := ParseDirectoryPoolTags(append(pool.Strings(), "somebody's"))
	require.NoError(t, err)
	require.Equal(t, pool, got)
	require.True(t, OwnedDirectoryPool(pool.Strings()))
	require.False(t, OwnedDirectoryPool(PoolTags()))
	_, err = ParseTags(pool.Strings())
	require.Error(t, err, "it is taken for a volume")
	for _, wrong := range [][]string{
		nil, PoolTags(), append(pool.Strings(), "flexlvm.new=1"),
		DirectoryPool{State: Retained, FS: pool.FS, Size: GiB}.Strings(),
		DirectoryPool{State: Ready, FS: "x", Size: GiB}.Strings(),
		DirectoryPool{State: Ready, FS: pool.FS}.Strings(),
	} {
		_, err := ParseDirectoryPoolTags(wrong)
		require.Error(t, err, "%v", wrong)
	}
}

func TestDirectoryIsRefused(t *testing.T) {
	good := Spec{Group: "g", Name: "pvc", Size: MiB, Layout: Directory, DirectoryPool: "small", Kind: Claim}
	require.NoError(t, good.Validate())
	for field, change := range map[string]func(*Spec){
		OptionDirectoryPool: func(s *Spec) { s.DirectoryPool = "" },
		OptionSize:          func(s *Spec) { s.Size = 512*KiB - 1 },
		OptionFSType:        func(s *Spec) { s.FSType = Ext4 },
		OptionVolumeMode:    func(s *Spec) { s.FSType = Raw },
		OptionEncrypted:     func(s *Spec) { s.Encrypted = true },
		OptionKind:          func(s *Spec) { s.Kind = Dataset },
		OptionCloneOf:       func(s *Spec) { s.CloneOf = "other" },
		OptionThinPool:      func(s *Spec) { s.ThinPool = "thinpool" },
	} {
		s := good
		change(&s)
		var wrong *FieldError
		require.ErrorAs(t, s.Validate(), &wrong)
		require.Equal(t, field, wrong.Field)
	}
}

func TestPoolNames(t *testing.T) {
	for text, noun := range map[string]string{"g": "volume group", "g/thin": "thin pool", "g:small": "directory pool"} {
		p, err := ParsePool("pool", text)
		require.NoError(t, err)
		require.Equal(t, PoolName(text), p)
		require.Equal(t, Group("g"), p.Group())
		require.Equal(t, noun, p.Noun())
	}
	for _, wrong := range []string{"g:", ":small", "g:a/b", "g:a:b"} {
		_, err := ParsePool("pool", wrong)
		require.Error(t, err, wrong)
	}
}
