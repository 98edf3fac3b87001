//go:build vm

package node

import (
	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/internal/dm"
	"github.com/flexlvm/flexlvm/internal/volume"
)

// fill returns how full the store of a snapshot is, as reported by device-mapper.
func (m *machine) fill(n volume.Name) int {
	m.t.Helper()
	fills, err := dm.Fills(m.ctx(), m.host.Unkillable)
	require.NoError(m.t, err)
	require.Contains(m.t, fills, volume.DeviceName(group, n))
	return fills[volume.DeviceName(group, n)]
}
