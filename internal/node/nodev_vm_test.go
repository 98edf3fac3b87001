//go:build vm

package node

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A tenant who is root in a container may create device nodes. They do not work on the host.
func TestDeviceNodesOfTenants(t *testing.T) {
	m := newMachine(t)
	s := m.volume("data", 64*volume.MiB)
	target := m.mount(s, "a")
	require.NoError(t, unix.Mknod(target+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), "it may be made, and copied")
	readOnly := m.target("b")
	require.NoError(t, m.Mount(m.ctx(), s, MountRequest{Target: readOnly, ReadOnly: true}))
	for _, dir := range []string{target, readOnly} {
		_, err := os.Open(dir + "/null")
		require.ErrorIs(t, err, os.ErrPermission, dir)
		var st unix.Statfs_t
		require.NoError(t, unix.Statfs(dir, &st))
		require.Zero(t, st.Flags&unix.ST_NOSUID, "what a pod runs may be setuid: %s", dir)
	}
}
