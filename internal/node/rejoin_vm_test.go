//go:build vm

package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/volume"
)

// A node that rejoins with new disks, and with its records of the lost volumes, has no replica of a dataset
// that it had before until the records are removed, as docs/node-loss.md says.
func TestReplicaOnNewDisks(t *testing.T) {
	m := newMachine(t)
	s := m.volume("ds-0123456789abcdef", 64*volume.MiB)
	s.Kind = volume.Dataset
	target := m.mount(s, "a")
	require.NoError(t, os.WriteFile(target+"/f", []byte("x"), 0o600))
	m.unmount(target)
	m.clear(s.Name)

	require.ErrorIs(t, m.Mount(m.ctx(), s, MountRequest{Target: target}), ErrLost)
	require.NoError(t, os.RemoveAll(filepath.Dir(m.records.file(s.Group, s.Name))))
	require.NoFileExists(t, m.mount(s, "a")+"/f")
	m.unmount(target)
}
