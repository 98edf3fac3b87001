package quota

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Sizes must match the structures of the kernel.
func TestStructuresAreTheKernels(t *testing.T) {
	require.EqualValues(t, 28, unsafe.Sizeof(fsXAttr{}))
	require.EqualValues(t, 112, unsafe.Sizeof(diskQuota{}))
	require.EqualValues(t, 160, unsafe.Sizeof(quotaStatus{}))
}
