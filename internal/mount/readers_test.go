package mount

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A mount is left without the mapping of owners only if root has decided so, or the kernel cannot map them. A tenant
// can use up the user namespaces; then the mount fails and is retried.
func TestUsedUpNamespacesAreRetried(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EUSERS} {
		for limit, final := range map[string]bool{"0": true, "1": false, "15000": false, "not known": false} {
			err := explainNoNamespace(fmt.Errorf("clone: %w", full), limit)
			require.ErrorIs(t, err, full)
			require.ErrorContains(t, err, "user.max_user_namespaces")
			if final {
				require.ErrorIs(t, err, ErrNoMapping, limit)
			} else {
				require.NotErrorIs(t, err, ErrNoMapping, limit)
				require.ErrorContains(t, err, "it is retried")
			}
		}
	}
	for _, cannot := range []error{unix.EINVAL, unix.ENOSYS, unix.EPERM} {
		require.ErrorIs(t, explainNoNamespace(cannot, "15000"), ErrNoMapping)
	}
	for _, passing := range []error{unix.EAGAIN, unix.ENOMEM} {
		require.NotErrorIs(t, explainNoNamespace(passing, "0"), ErrNoMapping)
	}
}
