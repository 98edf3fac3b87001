package xfs

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command/commandtest"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type recorder [][]string

func (r *recorder) run(argv ...string) (string, error) {
	*r = append(*r, argv)
	return "", nil
}

func TestMkfsIsToldEverythingThatMatters(t *testing.T) {
	var ran recorder
	f := Format{Device: "/dev/mapper/flexlvm-a", UUID: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", Size: volume.GiB}
	require.NoError(t, Mkfs(t.Context(), commandtest.Func(ran.run), f))
	f.Inodes = 4 << 20
	require.NoError(t, Mkfs(t.Context(), commandtest.Func(ran.run), f))
	require.Equal(t, "mkfs.xfs -f -K -q -m crc=1,finobt=1,rmapbt=0,reflink=1,uuid=0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"+
		" -d agcount=4 -b size=4096 -i size=512 -l internal=1,size=67108864 /dev/mapper/flexlvm-a", strings.Join(ran[0], " "))
	require.True(t, strings.Contains(strings.Join(ran[1], " "), "-i size=512,maxpct="), strings.Join(ran[1], " "))
}

// Sizes and offsets must match the structures of the kernel.
func TestStructuresAreTheKernels(t *testing.T) {
	require.EqualValues(t, 112, unsafe.Sizeof(fsGeometry{}))
	require.EqualValues(t, 32, unsafe.Offsetof(fsGeometry{}.dataBlocks))
	require.EqualValues(t, 32, unsafe.Sizeof(counts{}))
	require.EqualValues(t, 16, unsafe.Sizeof(growData{}))
}
