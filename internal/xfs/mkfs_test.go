package xfs

import (
	"context"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/command"
	"github.com/flexlvm/flexlvm/internal/volume"
)

type recorder []command.Command

func (r *recorder) Run(_ context.Context, c command.Command) (command.Result, error) {
	*r = append(*r, c)
	return command.Result{}, nil
}

func TestMkfsIsToldEverythingThatMatters(t *testing.T) {
	var ran recorder
	f := Format{Device: "/dev/mapper/flexlvm-a", UUID: "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11", Size: volume.GiB}
	require.NoError(t, Mkfs(t.Context(), &ran, f))
	f.Inodes = 4 << 20
	require.NoError(t, Mkfs(t.Context(), &ran, f))
	require.Equal(t, "mkfs.xfs -f -K -q -m crc=1,finobt=1,rmapbt=0,reflink=1,uuid=0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"+
		" -d agcount=4 -b size=4096 -i size=512 -l internal=1,size=67108864 /dev/mapper/flexlvm-a", ran[0].String())
	require.True(t, strings.Contains(ran[1].String(), "-i size=512,maxpct="), ran[1].String())
	require.True(t, ran[0].Disposable, "a half-made file system is nobody's")
}

// The kernel reads these by their size and offsets.
func TestStructuresAreTheKernels(t *testing.T) {
	require.EqualValues(t, 28, unsafe.Sizeof(fsXAttr{}))
	require.EqualValues(t, 112, unsafe.Sizeof(diskQuota{}))
	require.EqualValues(t, 160, unsafe.Sizeof(quotaStatus{}))
	require.EqualValues(t, 112, unsafe.Sizeof(geometry{}))
	require.EqualValues(t, 32, unsafe.Offsetof(geometry{}.dataBlocks))
	require.EqualValues(t, 32, unsafe.Sizeof(counts{}))
	require.EqualValues(t, 16, unsafe.Sizeof(growData{}))
}
