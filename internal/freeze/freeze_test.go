package freeze

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheckRelease(t *testing.T) {
	for _, release := range []string{"7.3.4-uml", "7.4.0-1-generic", "10.0"} {
		require.NoError(t, checkRelease(release), release)
	}
	for _, release := range []string{"6.1.0-18-amd64", "5.14.0-427.el9.x86_64", "6.8.0-45-generic", "6.12.1", "7.2.9"} {
		require.ErrorContains(t, checkRelease(release), "the kernel is "+release+", and before Linux 7.3 no snapshot is taken of a file system that is frozen")
	}
	require.Error(t, checkRelease("next"))
}
