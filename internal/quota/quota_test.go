package quota

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The kernel reads these by their size and offsets.
func TestStructuresAreTheKernels(t *testing.T) {
	require.EqualValues(t, 28, unsafe.Sizeof(fsXAttr{}))
	require.EqualValues(t, 112, unsafe.Sizeof(diskQuota{}))
	require.EqualValues(t, 160, unsafe.Sizeof(quotaStatus{}))
}
